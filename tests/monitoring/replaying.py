"""Alerts on the metrics of real servers, by promtool's clock.

What a server's counters grew by, and where its gauges stood, while something was done to it, is
what happens in each minute of a replay.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests import plain

PATIENCE_S: Final = 180
NEEDS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="Debian's package prometheus is not installed"
)
Sample = dict[str, float]  # the value of each series, by its name and labels
Minute = Callable[[Sample], Sample]  # from the sample before
Pods = Mapping[str, Sequence[Minute | None]]  # None: the pod is not there
COUNTERS: Final = ("_total", "_count", "_sum", "_bucket")


def sample_of(url: str) -> Sample:
    lines = plain.get(f"{url}/metrics", timeout=PATIENCE_S).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("harmonium_"))
    return {series: float(value) for series, value in pairs}


def minute_of(url: str, work: Callable[[], None]) -> Minute:
    """What the work does to the metrics of a server."""
    before = sample_of(url)
    work()
    after = sample_of(url)

    def next_of(last: Sample) -> Sample:
        return {
            series: last.get(series, 0.0) + value - before.get(series, 0.0)
            if series.partition("{")[0].endswith(COUNTERS)
            else value
            for series, value in after.items()
        }

    return next_of


def replayed(pods: Pods) -> list[dict[str, str]]:
    """promtool's series of the pods."""
    series: dict[str, list[str]] = {}
    length = max(map(len, pods.values()))
    for pod, history in pods.items():
        last: Sample = {}
        for number, minute in enumerate(history):
            last = {} if minute is None else minute(last)
            for name, value in last.items():
                labels = f'namespace="n",job="j",instance="{pod}"'
                where = name.replace("{", f"{{{labels},") if "{" in name else f"{name}{{{labels}}}"
                series.setdefault(where, ["_"] * length)[number] = repr(value)
    return [{"series": name, "values": " ".join(values)} for name, values in series.items()]


def check(
    folder: Path,
    rules: Path,
    pods: Pods,
    *,
    ever: Collection[str] = (),
    **critical: tuple[int, int],
) -> None:
    """Run promtool: which alerts fire at any time; or, of critical ones, the minutes at which each
    must not, and must, fire.
    """
    end = max(map(len, pods.values())) - 1
    query = 'group by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1d]))'
    named = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in ever]
    expected: list[dict[str, Any]] = [
        {"expr": query, "eval_time": f"{end}m", "exp_samples": named},
    ]
    if critical:
        expected = []
    for alert, (quiet, firing) in critical.items():
        query = f'count(ALERTS{{alertname="{alert}",alertstate="firing",severity="critical"}})'
        samples = [{"labels": "{}", "value": 1}]
        expected += [
            {"expr": query, "eval_time": f"{quiet}m", "exp_samples": []},
            {"expr": query, "eval_time": f"{firing}m", "exp_samples": samples},
        ]
    test = {"interval": "1m", "input_series": replayed(pods), "promql_expr_test": expected}
    file = folder / "replay.json"  # which is YAML
    whole = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}
    file.write_text(json.dumps(whole))
    done = subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
