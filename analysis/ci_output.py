"""A gate's decision for a CI service: JUnit XML, GitHub's annotations."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

from analysis import gate_words
from analysis.gate import Decision, Row, Verdict

_LEVELS = {Verdict.REGRESSION: "error", Verdict.INCONCLUSIVE: "warning"}
_UNPRINTABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(decision: Decision) -> bytes:
    """One test case a metric: a regression is a failure, an inconclusive one an error, one without verdict skipped.

    The whole gate's verdict is a case too, so that what keeps it from passing beside the metrics is seen.
    """
    suite = ET.Element("testsuite", name="compare", timestamp=decision.candidate.started.split("+")[0])
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    outcomes = {Verdict.REGRESSION: "failure", Verdict.INCONCLUSIVE: "error", Verdict.NONE: "skipped"}
    plural = {"failure": "failures", "error": "errors", "skipped": "skipped"}
    cases = [(row.change.name, row.verdict, f"{row.label}: {said}") for row, said in _said(decision)]
    for name, verdict, text in [*cases, ("gate", decision.verdict, gate_words.headline(decision))]:
        case = ET.SubElement(suite, "testcase", classname="compare", name=name, time="0")
        counts["tests"] += 1
        if (outcome := outcomes.get(verdict)) is not None:
            counts[plural[outcome]] += 1
            ET.SubElement(case, outcome, message=_printable(text), type=str(verdict))
        ET.SubElement(case, "system-out").text = _printable(text)
    suite.attrib |= {name: str(count) for name, count in counts.items()}
    suite.set("time", "0")
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _said(decision: Decision) -> Iterator[tuple[Row, str]]:
    for row in decision.rows:
        change = row.change
        within = ""
        if change.interval is not None:
            low, high = change.interval.low, change.interval.high
            within = f" ({gate_words.signed_percent(low)} to {gate_words.signed_percent(high)})"
        yield row, f"{gate_words.signed_percent(change.change)}{within}, {gate_words.verdict(row)}"


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("\ufffd", text)


def write_junit(path: Path, decision: Decision) -> None:
    """Raises OSError when it can't be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(junit(decision))


def annotations(decision: Decision) -> list[str]:
    """GitHub's workflow commands, one a line of stdout: the verdict, then each row that is not a pass."""
    said = [_annotation(decision.verdict, f"compare: {decision.verdict}", gate_words.headline(decision))]
    for row, text in _said(decision):
        if row.verdict in (Verdict.REGRESSION, Verdict.INCONCLUSIVE):
            said.append(_annotation(row.verdict, f"{row.verdict}: {row.label}", text))
    return said


def _annotation(verdict: Verdict, title: str, text: str) -> str:
    return f"::{_LEVELS.get(verdict, 'notice')} title={_property(title)}::{_data(text)}"


def _data(text: str) -> str:
    """As GitHub's toolkit escapes a command's text (packages/core/src/command.ts)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
