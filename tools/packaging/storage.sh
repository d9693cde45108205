# shellcheck shell=bash
# Sourced: podman and buildah with a store of this checkout's own, under .cache/.
# The run root lies in /tmp because podman allows it 50 characters only.
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
run_root=/tmp/harmonium-$(id -u)-$(cksum <<< "$checkout" | cut -d ' ' -f 1)
export CONTAINERS_CONF=$checkout/tools/packaging/containers.conf
store=(--root "$checkout/.cache/containers" --runroot "$run_root")
