"""Tools as the TypeScript-like text that Kimi's template declares them with."""

import json
from typing import Any

Schema = dict[str, Any]
LIMITS = ("maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "pattern")


def declaration(tools: list[dict[str, Any]]) -> str:
    return "# Tools\n\n## functions\nnamespace functions {\n" + "".join(_function(t["function"]) for t in tools) + "}\n"


def _function(function: Schema) -> str:
    schema = function.get("parameters") or {}
    return f"{_comment(function.get('description', ''), '')}type {function['name']} = (_: {_object(schema, '')}) => any;\n"


def _comment(text: str, indent: str) -> str:
    return "".join(f"{indent}// {line}\n" for line in text.split("\n") if line)


def _notes(schema: Schema, indent: str) -> str:
    limits = ", ".join(f"{k}: {schema[k]}" for k in LIMITS if k in schema)
    return _comment(schema.get("description", ""), indent) + (f"{indent}// {limits}\n" if limits else "")


def _object(schema: Schema, indent: str) -> str:
    required, properties = schema.get("required", []), schema.get("properties", {})
    inner = indent + "  "
    fields = [f"{_notes(properties[n], inner)}{inner}{n}{'' if n in required else '?'}: {_type(properties[n], inner)}"
              for n in sorted(properties, key=lambda n: (n not in required, n))]
    return "{\n" + ",\n".join(fields) + f"\n{indent}}}" if fields else "{}"


def _type(schema: Schema, indent: str) -> str:
    if "enum" in schema:
        return " | ".join(json.dumps(v, ensure_ascii=False) for v in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type(s, indent) for s in schema["anyOf"])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(_type({**schema, "type": k}, indent) for k in kind)
    if kind == "object":
        return _object(schema, indent)
    if kind == "array":
        return f"Array<{_type(schema.get('items', {}), indent)}>"
    return "number" if kind == "integer" else str(kind)
