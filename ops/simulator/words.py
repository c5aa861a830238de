"""What the simulator's answers are made of. Data: each piece is one token of the simulator's own count."""

import random

_WORDS = (
    "the a of to and in is that it for as with on by this we can be from which when not or an each one if so then two "
    "first let us check value number result case step answer problem because both same other only more less than "
    "between over under after before while where how what why there here now new small large left right next last "
    "sum product list table row column key word line file code test function method class object type name string "
    "point line area angle circle square side length width height weight speed time hour day week month year water "
    "air light sound heat energy force mass field wave plant animal tree leaf root seed cell blood heart hand eye "
    "city road house door window room wall river sea hill forest farm market school book page letter story music "
    "question reason cause effect rule law idea plan goal task work job price cost money trade tax bank loan rate "
    "simple clear exact true false common rare early late fast slow high low deep wide long short old young strong "
    "weak warm cold hot dry wet open close begin end start stop move turn hold keep give take make find show tell "
    "ask read write count add divide multiply compare follow change grow fall rise build break carry bring send "
    "think know mean seem need want try use help call play run walk drive fly swim sit stand wait learn teach"
)
_HAN = (
    "的 一 是 在 不 了 有 和 人 这 中 大 为 上 个 国 我 以 要 他 时 来 用 们 生 到 作 地 于 出 就 分 对 成 会 可 主 发 年 动 同 "
    "工 也 能 下 过 子 说 产 种 面 而 方 后 多 定 行 学 法 所 民 得 经 十 三 之 进 着 等 部 度 家 电 力 里 如 水 化 高 自 二 理 "
    "问题 我们 可以 因为 所以 如果 首先 然后 最后 结果 数字 计算 方法 时间 例子 答案 需要 使用 这个 没有 已经 现在 知道 开始"
)
WORDS, HAN = _WORDS.split(), _HAN.split()
CODE = (
    "\n", "\n    ", "\n        ", " =", " ==", " +", " -", " *", "(", ")", "[", "]", ":", ",", ".", " if", " for", " in",
    " return", " def", " x", " y", " i", " n", " 0", " 1", " 2", '"', "'",
    "\\", "{", "}", " <", " >", "_", "#", " None", " True", "\t",
)
SIGNS = ("🦅", "🙂", "🚀", "✅", "→", "…", "—", "é", "ß", "Ω", "±", "½", "नम", "ты", "שלום", "\u2028")


def stream(draw: random.Random) -> list[str]:
    """One passage: an English sentence, a Chinese one, some code, or a sign or two."""
    kind = draw.random()
    if kind < 0.72:
        return [*(" " + draw.choice(WORDS) for _ in range(draw.randint(6, 18))), draw.choice((".", ".", ".", ",", "?", "\n\n"))]
    if kind < 0.87:
        return [*(draw.choice(HAN) for _ in range(draw.randint(5, 15))), "。"]
    if kind < 0.97:
        return [piece for _ in range(draw.randint(4, 12)) for piece in (draw.choice(CODE), " " + draw.choice(WORDS))]
    return [" ", draw.choice(SIGNS)]
