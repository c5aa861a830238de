"""Texts as models write them, in the mixture that breaks token counts: prose, Chinese, code, emoji, runs of white space."""

import json
from collections.abc import Callable
from random import Random

ENGLISH = (
    "the", "model", "reads", "a", "prompt", "and", "proposes", "several", "tokens", "which", "larger", "networks", "verify",
    "because", "speed", "matters", "more", "than", "memory", "when", "each", "step", "waits", "for", "weights", "however",
    "results", "don't", "change", "it's", "still", "exact", "isn't", "that", "surprising")
CHINESE = (
    "推测解码先用小模型写出草稿", "再由大模型一次验证", "这样可以加快生成速度", "结果与原来完全相同", "训练数据必须来自目标模型",
    "质数只有一和它本身两个因数", "请列出前三个例子", "第一步计算平均值", "然后比较误差", "最后给出结论")
EMOJI = "🦅🚀👍🏽🎉😀😅🤣👩\u200d💻🏳️\u200d🌈🇯🇵✅❌🔥💡🧠📈"
NAMES = ("ids", "count", "prompt", "draft_tokens", "maxLength", "self.cache", "x", "total_loss", "HTTPServer", "i")
OTHER = (
    "Zwölf Boxkämpfer", "naïve café", "Łódź", "Ελληνικά", "русский текст", "한국어 문장입니다", "カタカナ", "العربية", "हिन्दी")


def english(random: Random) -> str:
    words = [random.choice(ENGLISH) for _ in range(random.randint(5, 22))]
    if random.random() < 0.3:
        odd = random.choice(["3.14", "(n=1000)", "2026-12-01", '"quoted"', "**bold**", "50%"])
        words.insert(random.randrange(len(words)), odd)
    return " ".join(words).capitalize() + random.choice([". ", ". ", "? ", "! ", ": ", ".\n", ".\n\n", "... "])


def chinese(random: Random) -> str:
    clauses = "，".join(random.choice(CHINESE) for _ in range(random.randint(1, 4)))
    return clauses + random.choice(["。", "！", "？", "。\n", "：", "（见上）。"])


def code(random: Random) -> str:
    lines = []
    for _ in range(random.randint(2, 7)):
        a, b, indent = random.choice(NAMES), random.choice(NAMES), random.choice(["", "    ", "        ", "\t"])
        lines.append(indent + random.choice([
            f"{a} = {b}[{random.randint(0, 4000)}:]", f"for {a} in range({b}):", f"return {a} + {b} * {random.random():.4f}",
            f"if ({a} != {b} && !{a}.empty()) {{", f"print(f\"{{{a}}}: {{{b}!r}}\")", f"// {english(random).strip()}", "}"]))
    return f"\n```{random.choice(['python', 'cpp', ''])}\n" + "\n".join(lines) + "\n```\n\n"


def emoji(random: Random) -> str:
    row = "".join(random.choice(EMOJI) for _ in range(random.randint(1, 6)))
    return random.choice(["", " ", "  "]) + row + random.choice([" ", "\n", ""])


def spaces(random: Random) -> str:
    table = "| a |  b |\n|---|---|\n"
    blank = " " * random.randint(2, 40)
    return random.choice([blank, "\n" * random.randint(2, 6), "\t\t", " \n \n", "\r\n", "\u3000", "\u00a0", table])


def other(random: Random) -> str:
    return random.choice(OTHER) + random.choice([" ", ", ", ". "])


def data(random: Random) -> str:
    return json.dumps({random.choice(NAMES): random.choice([1, None, "é\n", [0.5, "b"]]), "k": random.randint(0, 9999)},
                      ensure_ascii=random.random() < 0.5) + random.choice(["\n", " "])


KINDS: tuple[tuple[Callable[[Random], str], int], ...] = (
    (english, 60), (chinese, 15), (code, 8), (emoji, 6), (spaces, 4), (other, 5), (data, 4))


def text(random: Random, sentences: int) -> str:
    """So many pieces of mixed text, without white space at either end."""
    makers, weights = zip(*KINDS, strict=True)
    pieces = [make(random) for make in random.choices(makers, weights, k=sentences)]
    return "".join(pieces).strip() or "Yes."
