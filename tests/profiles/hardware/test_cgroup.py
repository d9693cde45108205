"""Control group limits as containers and services meet them."""

from __future__ import annotations

from pathlib import Path

from profiles.hardware.cgroup import CgroupLimits, read_limits

GIB = 1 << 30


def write(files: dict[str, str], root: Path) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def limits(tmp_path: Path, membership: str, **files: str) -> CgroupLimits:
    write({"self/cgroup": membership}, tmp_path / "proc")
    write(files, tmp_path / "cgroup")
    return read_limits(tmp_path / "proc", tmp_path / "cgroup")


def test_version_2_takes_the_tightest_of_the_group_and_its_parents(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        "0::/kubepods/pod1\n",
        **{
            "kubepods/pod1/cpu.max": "max 100000\n",
            "kubepods/pod1/memory.max": f"{8 * GIB}\n",
            "kubepods/pod1/memory.current": f"{GIB}\n",
            "kubepods/cpu.max": "150000 100000\n",
            "kubepods/memory.max": f"{4 * GIB}\n",
            "kubepods/memory.current": f"{3 * GIB}\n",
        },
    )
    assert found == CgroupLimits(1.5, 4 * GIB, 3 * GIB)


def test_version_2_inside_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        "0::/../../docker/abc\n",
        **{"cpu.max": "200000 100000", "memory.max": f"{GIB}", "memory.current": "5"},
    )
    assert found == CgroupLimits(2.0, GIB, 5)


def test_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:pids:/docker/abc\n",
        **{
            "memory/docker/abc/memory.limit_in_bytes": f"{2 * GIB}",
            "memory/docker/abc/memory.usage_in_bytes": f"{GIB}",
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "50000",
            "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000",
        },
    )
    assert found == CgroupLimits(0.5, 2 * GIB, GIB)


def test_version_1_without_a_quota_writes_minus_one(tmp_path: Path) -> None:
    found = limits(
        tmp_path,
        "2:cpu:/\n",
        **{"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
    )
    assert found == CgroupLimits()


def test_cached_files_count_as_free(tmp_path: Path) -> None:
    stat = f"anon 5\ninactive_file {GIB}\nactive_file 7\n"
    used = {"memory.max": f"{2 * GIB}", "memory.current": f"{GIB + 9}", "memory.stat": stat}
    assert limits(tmp_path, "0::/\n", **used) == CgroupLimits(None, 2 * GIB, 9)


def test_no_limits_and_no_cgroups(tmp_path: Path) -> None:
    assert read_limits(tmp_path / "none", tmp_path / "none") == CgroupLimits()
    unlimited = {"cpu.max": "max 100000", "memory.max": "max", "memory.current": "1"}
    assert limits(tmp_path, "0::/\n", **unlimited) == CgroupLimits()
