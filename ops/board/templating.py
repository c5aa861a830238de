"""Our templates beside Flower's: they extend its base page, and its own pages link to ours."""

from pathlib import Path

from tornado.template import BaseLoader, Template

FLOWERS = "navbar.html"
OURS = Path(__file__).with_name("templates")


class Loader(BaseLoader):
    """Looks into our folder, then Flower's; adds our entries to the end of Flower's first list of links."""

    def __init__(self, flowers: str) -> None:
        super().__init__()
        self._flowers = Path(flowers)

    def resolve_path(self, name: str, parent_path: str | None = None) -> str:
        return name

    def _create_template(self, name: str) -> Template:
        own = OURS / name
        source = (own if own.exists() else self._flowers / name).read_text(encoding="utf-8")
        if name == FLOWERS:
            source = source.replace("</ul>", (OURS / "links.html").read_text(encoding="utf-8") + "</ul>", 1)
        return Template(source, name=name, loader=self)
