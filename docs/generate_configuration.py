"""Writes the tables of docs/configuration.md from the declarations in `relight.settings`; `--check` only compares."""

# ruff: noqa: INP001 - a script

from __future__ import annotations

import sys
from dataclasses import MISSING, fields
from pathlib import Path

from relight.settings import OPTIONS, Settings
from relight.sources import environment_names

PAGE = Path(__file__).with_name("configuration.md")
BEGIN, END = "<!-- generated: begin -->\n", "<!-- generated: end -->\n"

GROUPS = {
    "inference_address": "Listeners",
    "keystore": "TLS and CORS",
    "model_store": "Models and workers",
    "enable_metrics_api": "Metrics and logging",
    "disable_token_authorization": "Security",
    "vmargs": "Read for the JVM's sake",
}
"""The first key of each group, and the group's title."""


def tables() -> str:
    """All keys, in the order of their declaration."""
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(Settings)
    }
    lines: list[str] = []
    for key, declared in OPTIONS.items():
        if key in GROUPS:
            lines += ["", f"### {GROUPS[key]}", "", "| Key | Default | Variable | Meaning |", "|---|---|---|---|"]
        variables = " or ".join(f"`{name}`" for name in environment_names(key, declared)) or "-"
        note = " **No effect.**" if declared.no_effect else " **Not yet.**" if declared.not_yet else ""
        doc = declared.doc.replace("|", "\\|")
        lines.append(f"| `{key}` | {_default(defaults[key])} | {variables} | {doc}{note} |")
    return "\n".join(lines).lstrip("\n") + "\n"


def _default(value: object) -> str:
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    if value in (None, "", {}):
        return "-"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`".replace("|", "\\|")


def main() -> int:
    """Rewrite the page, or check it."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    fresh = f"{before}{BEGIN}\n{tables()}\n{END}{after}"
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(fresh)
    elif fresh != page:
        sys.stderr.write(f"{PAGE} is not up to date: run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
