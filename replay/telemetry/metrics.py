"""What a server tells at ``/metrics`` (Prometheus text format 0.0.4)."""

import re
import urllib.request

from replay.telemetry.sources import Sample

_TIMEOUT_S = 0.5
_SERIES = re.compile(r"([A-Za-z_:][\w:]*(?:\{[^}]*\})?)\s+(\S+)")


# No proxy: it would answer for the engine.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def scrape(url: str) -> Sample:
    """The series at ``url``/metrics; none where nothing answers."""
    try:
        with _OPENER.open(f"{url}/metrics", timeout=_TIMEOUT_S) as answer:
            return series(answer.read().decode(errors="replace"))
    except OSError:  # URLError and timeouts are
        return {}


def series(text: str) -> Sample:
    """``metrics.<name>{labels}`` → value. Buckets of histograms are left out: their sums and counts say enough."""
    found: Sample = {}
    for line in text.splitlines():
        match = _SERIES.match(line)
        if match and "_bucket{" not in line:
            try:
                found[f"metrics.{match[1]}"] = float(match[2])
            except ValueError:
                continue
    return found
