#!/bin/sh
# Builds what scripts/gpu/prove.sh runs, into the folder $1 (default target/gpu). Needs no CUDA.
# PROFILE=dev is quicker to build; only loading and the reference are slower then.
set -eu
case ${1:-} in
  -*)
    echo "usage: [PROFILE=dev] $0 [FOLDER]  (default target/gpu)"
    exit 2
    ;;
esac
cd "$(dirname "$0")/../.."
to=${1:-target/gpu}
profile=${PROFILE:-release}
cargo build --profile "$profile" -p lily -p lily-cuda --bin lily --example prove
case $profile in dev) folder=debug ;; *) folder=$profile ;; esac
built=${CARGO_TARGET_DIR:-target}/$folder
mkdir -p "$to"
cp "$built/lily" "$built/examples/prove" "$to/"
# Half of the size is debug information.
strip "$to/lily" "$to/prove"
ls -l "$to"
