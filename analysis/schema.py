"""The schema of ``results.json``, and ``docs/results.md``, which is written from it.

python -m analysis.schema > docs/results.md
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

SCHEMA_FILE = Path(__file__).parent / "data" / "results.schema.json"
Schema = Mapping[str, Any]

INTRODUCTION = """# results.json

<!-- Written by `python -m analysis.schema` from analysis/data/results.schema.json: change that file. -->

`analyse FOLDER` writes the report's numbers for programs:

| file | what it holds |
| --- | --- |
| `results.json` | everything below, version {version}; validate it with `analysis/data/results.schema.json` |
| `tables/*.csv` | the report's tables |
| `turns.parquet` | every turn: what was observed, every metric, and `counted`, whether it is in the statistics |

In a table, numbers are in full with their unit in the header (`tpot_ms`), an interval is `…_low` and `…_high`. What
is absent is empty, and the last column, `why_absent`, says why. Rows of the paper's numbers say so in `source`.

{description}
"""


def schema() -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(SCHEMA_FILE.read_bytes())
    return found


def as_markdown() -> str:
    """A table for each kind of object, the whole first."""
    whole = schema()
    kinds: dict[str, Schema] = whole["$defs"]
    report = kinds["report"]
    own: Schema = {**report, "properties": {**report["properties"], **whole["properties"]}}
    introduction = INTRODUCTION.format(
        version=report["properties"]["version"]["const"], description=whole["description"]
    )
    sections = [introduction, _section("The whole", own)]
    sections += [_section(f"`{name}`", kind) for name, kind in kinds.items() if name != "report"]
    return "\n".join(sections)


def _section(title: str, kind: Schema) -> str:
    rows = "\n".join(
        f"| `{name}` | {type_} | {description} |" for name, type_, description in _rows(kind["properties"], "")
    )
    return f"## {title}\n\n{kind['description']}\n\n| field | type | what it is |\n| --- | --- | --- |\n{rows}\n"


def _rows(properties: Schema, prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in properties.items():
        yield prefix + name, _type(field), field.get("description", "")
        yield from _rows(field.get("properties", {}), f"{prefix}{name}.")
        yield from _rows(field.get("items", {}).get("properties", {}), f"{prefix}{name}[].")


def _type(field: Schema) -> str:
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    if "anyOf" in field:
        return " or ".join(_type(each) for each in field["anyOf"])
    if "const" in field:
        return str(field["const"])
    types = field.get("type", "anything")
    names = [types] if isinstance(types, str) else types
    return " or ".join(_of(name, field) for name in names)


def _of(name: str, field: Schema) -> str:
    if name == "array" and "properties" not in field["items"]:
        return f"list of {_type(field['items'])}"
    if name == "object" and "additionalProperties" in field:
        return f"text → {_type(field['additionalProperties'])}"
    return {"array": "list", "string": "text"}.get(name, name)


if __name__ == "__main__":
    print(as_markdown(), end="")
