"""Tools as the TypeScript-like text in which Kimi-K2.5 is told of them.

The form was read from the declaration that comes with the model's tokenizer: required fields first, then alphabetical;
descriptions, limits and defaults as comments; `$defs` as interfaces in front.
"""

import json
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
LIMITS = {"string": ("maxLength", "minLength", "pattern"), "number": ("maximum", "minimum"), "integer": ("maximum", "minimum"),
          "array": ("maxItems", "minItems")}
UNION = {"integer": "number", "object": "{}", "array": "Array<any>"}


def declaration(tools: list[dict[str, Any]]) -> str:
    """ValueError or KeyError for a schema this form cannot say."""
    functions = [_function(tool["function"]) for tool in tools if tool.get("type", "function") == "function"]
    return "# Tools\n\n## functions\nnamespace functions {\n" + "\n".join(functions) + "\n}\n"


def _function(function: Schema) -> str:
    schema = function.get("parameters") or {}
    lines = [f"{_comment(shape.get('description', ''), '')}interface {name} {_type(shape, '')}"
             for name, shape in schema.get("$defs", {}).items()]
    lines.append(f"{_comment(function.get('description') or '', '')}type {function['name']} = (_: {_object(schema, '')}) => any;")
    return "\n".join(lines)


def _comment(text: str, indent: str) -> str:
    return "".join(f"{indent}// {line}\n" if line else "\n" for line in text.split("\n")) if text else ""


def _notes(schema: Schema, indent: str) -> str:
    kind = schema.get("type") if "enum" not in schema and "anyOf" not in schema else None
    limits = ", ".join(f"{k}: {schema[k]}" for k in LIMITS.get(kind if isinstance(kind, str) else "", ()) if k in schema)
    return _comment(schema.get("description", ""), indent) + (f"{indent}// {limits}\n" if limits else "")


def _fields(schema: Schema, indent: str) -> Iterator[str]:
    required, properties = schema.get("required", []), schema.get("properties", {})
    for name in sorted(properties, key=lambda n: (n not in required, n)):
        field = properties[name] if isinstance(properties[name], dict) else {}
        default = field.get("default")
        told = repr(default) if isinstance(default, int | float) else json.dumps(default, ensure_ascii=False)
        note = f"{indent}// Default: {told}\n" if default is not None else ""
        mark = "" if name in required else "?"
        yield f"{_notes(field, indent)}{note}{indent}{name}{mark}: {_type(properties[name], indent)}"
    other = schema.get("additionalProperties")
    if other is not None:
        yield f"{indent}[k: string]: {'never' if other is False else _type(other, indent)}"


def _object(schema: Schema, indent: str) -> str:
    fields = list(_fields(schema, indent + "  "))
    return "{\n" + ",\n".join(fields) + f"\n{indent}}}" if fields else "{}"


def _array(schema: Schema, indent: str) -> str:
    item = schema.get("items") or {}
    notes = _notes(item, indent + "  ") if isinstance(item, dict) else ""
    if notes:
        return f"Array<\n{notes}{indent}  {_type(item, indent + '  ')}\n{indent}>"
    return f"Array<{_type(item, indent)}>"


def _type(schema: Schema | bool, indent: str) -> str:
    if isinstance(schema, bool):
        return "any" if schema else "null"
    if "$ref" in schema:
        if not schema["$ref"].startswith("#/$defs/"):
            raise ValueError("only references to $defs are known")
        return str(schema["$ref"].rsplit("/", 1)[-1])
    if "anyOf" in schema:
        return " | ".join(_type(s, indent) for s in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in schema["enum"])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(UNION.get(str(k), str(k)) for k in kind)
    form = {"object": _object, "array": _array}.get(kind)
    return form(schema, indent) if form else "number" if kind == "integer" else str(kind)
