"""Results and how a notebook shows them."""

from __future__ import annotations

import base64
import html
import re
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Union

_STYLE = "text-align:{};padding:.1em .8em"


def _cell(value: Any, tag: str = "td") -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    shown = "–" if value is None else f"{value:,}" if isinstance(value, int) and number else f"{value:.5g}" if number else value
    return f'<{tag} style="{_STYLE.format("right" if number else "left")}">{html.escape(str(shown))}</{tag}>'


def _html(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> str:
    title = "<thead><tr>" + "".join(_cell(name, "th") for name in head) + "</tr></thead>" if head else ""
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return f"<table>{title}<tbody>{body}</tbody></table>"


def _data(path: Path) -> str:
    kind = "svg+xml" if path.suffix == ".svg" else "png"
    return f"data:image/{kind};base64," + base64.b64encode(path.read_bytes()).decode()


class Table(List[Dict[str, Any]]):
    """Rows with named columns: a list of dicts that a notebook shows as a table."""

    @property
    def columns(self) -> List[str]:
        """The names, in the order in which rows first have them; none whose cells are lists or objects."""
        names: Dict[str, bool] = {}
        for row in self:
            for name, value in row.items():
                names[name] = names.get(name, True) and not isinstance(value, (list, dict))
        return [name for name, plain in names.items() if plain]

    def column(self, name: str) -> List[Any]:
        """One column; None where a row lacks it. KeyError where all do."""
        if self and not any(name in row for row in self):
            raise KeyError(name)
        return [row.get(name) for row in self]

    def select(self, *names: str) -> "Table":
        """Only these columns, in this order."""
        return Table({name: row.get(name) for name in names} for row in self)

    def _repr_html_(self) -> str:
        names = self.columns
        return _html(([row.get(name) for name in names] for row in self), names)


class Result(Dict[str, Any]):
    """What a subcommand printed with --json: a dict. `result.name` is `result["name"]`, where a list of objects is a Table.

    Attributes:
        command: the words that were run
        exit_code: 0, or 1 where a check failed
        log: what the command wrote to stderr
    """

    def __init__(self, found: Mapping[str, Any], command: Sequence[str] = (), exit_code: int = 0, log: str = "") -> None:
        super().__init__(found)
        self.command, self.exit_code, self.log = list(command), exit_code, log

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"the result has no {name}; it has {', '.join(self)}") from None
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            return Table(value)
        return Result(value, self.command) if isinstance(value, dict) else value

    def __dir__(self) -> List[str]:
        return [*super().__dir__(), *(name for name in self if name.isidentifier())]

    def _repr_html_(self) -> str:
        if self and all(isinstance(value, dict) for value in self.values()):  # alike: one table
            return Table({"": name, **value} for name, value in self.items())._repr_html_()
        plain = [(name, value) for name, value in self.items() if not isinstance(value, (list, dict))]
        parts = [_html(plain)] if plain else []
        for name, value in self.items():
            shown = getattr(self, name) if isinstance(value, (list, dict)) and value else None
            if isinstance(shown, (Table, Result)):
                parts.append(f"<p><b>{html.escape(name)}</b></p>{shown._repr_html_()}")
            elif isinstance(shown, list):
                parts.append(f"<p><b>{html.escape(name)}</b>: {html.escape(', '.join(map(str, shown)))}</p>")
        return "".join(parts)


class Figure:
    """A figure on the disk, SVG or PNG, shown in a notebook. `path` is its file."""

    def __init__(self, path: "Union[str, Path]") -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Figure({str(self.path)!r})"

    def _repr_html_(self) -> str:
        # An image of its own: the ids in two of gnuplot's SVGs are the same.
        return f'<img alt="{html.escape(self.path.stem)}" style="max-width:100%" src="{_data(self.path)}">'


class Report(str):
    """A report in Markdown, which a notebook shows with its figures. `folder` is where it and they are."""

    folder: Path

    def _repr_markdown_(self) -> str:
        def embed(link: "re.Match[str]") -> str:
            file = self.folder / link[2]
            return f"{link[1]}({_data(file)})" if file.exists() else link[1][1:]

        return re.sub(r"(!\[[^]]*\])\(([\w.-]+\.(?:svg|png))\)", embed, self)


class Page:
    """A page of `mezzo report`, shown in a notebook in a frame. `path` is its file."""

    def __init__(self, path: "Union[str, Path]", height: int = 640) -> None:
        self.path, self.height = Path(path), height

    def __repr__(self) -> str:
        return f"Page({str(self.path)!r})"

    def _repr_html_(self) -> str:
        page = html.escape(self.path.read_text(encoding="utf-8"), quote=True)
        style = f"width:100%;height:{self.height}px;border:1px solid #ccc"
        return f'<iframe title="{html.escape(self.path.stem)}" style="{style}" srcdoc="{page}"></iframe>'
