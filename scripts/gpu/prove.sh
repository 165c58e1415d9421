#!/bin/sh
# Proves the CUDA device on a machine with an NVIDIA GPU, the CUDA toolkit and nothing else of ours
# but the programs that scripts/gpu/build.sh made.
#
#   scripts/gpu/prove.sh SECTION...
#
#   facts      kernels and graphs of the full shape
#   steps      every step against the CPU: a tiny model, then four layers of the full shape
#   goldens    reference logits and tokens (folder $GOLDENS, default shared/goldens)
#   tokens     greedy tokens of four layers against the CPU
#   company    the same tokens alone, again, and beside another session
#   sanitize   compute-sanitizer: memcheck and racecheck over a decode step and a prefill chunk
#   profile    time of each kernel of a decode step and a prefill chunk of all 40 layers (ncu)
#   bench      speed of all 40 layers (random weights, 19.5 GB)
#   trace      when each kind of step of a decode step begins and ends, as the graph runs it
#   ablate     each technique off, one at a time, at 512 to 131072 tokens
#   score      likelihood of 192 tokens through all 40 layers against the CPU: exact products, then
#              those of bf16, which random weights do not forgive; then, where $DEMO is the trained
#              demonstration model, $TEXTS: pairs of its token ids and the first of them to score
#   all        everything, in this order
#
# Results go to results.tgz in $OUT (default out): NAME.json and NAME.log of each section, packed
# again after each of them. Environment:
#   BIN      folder of the programs (default target/gpu)
#   MODELS   where checkpoints are written (default target/gpu-models)
#   POSITION tokens before the step that trace looks at (default 512)
#   LIMIT    seconds that one section may take (default 500)
#   CUDA     switches of the device, such as stream,early=off
#   LILY_KERNELS=kernels takes the sources of the kernels from the checkout, not from the programs
set -u
case ${1:-} in
  -*)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
cd "$(dirname "$0")/../.."
OUT=${OUT:-out} BIN=${BIN:-target/gpu} MODELS=${MODELS:-target/gpu-models} LIMIT=${LIMIT:-500}
GOLDENS=${GOLDENS:-shared/goldens} CUDA=${CUDA:-}
for section in "$@"; do
  case $section in
    facts | steps | goldens | tokens | company | sanitize | profile | trace | bench | ablate | score | all) ;;
    *)
      echo "unknown section $section; $0 -h names them" >&2
      exit 2
      ;;
  esac
done
RESULTS=$(mktemp -d)
mkdir -p "$OUT" "$MODELS"
chmod +x "$BIN"/* 2>/dev/null || true

# The run-time compiler: of the toolkit, else of a Python package.
for place in /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib \
    /opt/*/.venv/lib/python3*/site-packages/nvidia/cu13/lib; do
  if ls "$place"/libnvrtc.so* >/dev/null 2>&1; then
    LD_LIBRARY_PATH="$place:/usr/local/nvidia/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export LD_LIBRARY_PATH
    break
  fi
done

failed=""

# run NAME COMMAND...: standard output to NAME.json, the rest to NAME.log and here.
run() {
  name=$1
  shift
  began=$(date +%s)
  echo "== $name: $*"
  timeout -k 5 "$LIMIT" "$@" >"$RESULTS/$name.json" 2>"$RESULTS/$name.log"
  status=$?
  tail -n 60 "$RESULTS/$name.log"
  [ $status -eq 0 ] || failed="$failed $name"
  echo "== $name: status $status after $(($(date +%s) - began)) s"
  tar czf "$OUT/results.tgz" -C "$RESULTS" .
}

checkpoint() { # LAYERS
  dir=$MODELS/random-$1
  [ -d "$dir" ] || "$BIN/prove" make --layers "$1" "$dir" >/dev/null
}

facts() {
  checkpoint 40
  run facts "$BIN/prove" facts --model "$MODELS/random-40" --context 8192 --rows 4096 --cuda "$CUDA"
}

steps() {
  run steps-tiny "$BIN/prove" steps --context 256 --rows 80 --cuda "$CUDA"
  checkpoint 4
  run steps-cut "$BIN/prove" steps --model "$MODELS/random-4" --context 1024 --rows 128 \
    --position 600 --cuda "$CUDA"
}

goldens() {
  run goldens "$BIN/prove" goldens --folder "$GOLDENS" --context 256 --rows 64 --cuda "$CUDA"
}

tokens() {
  checkpoint 4
  run tokens "$BIN/prove" tokens --model "$MODELS/random-4" --context 512 --cuda "$CUDA"
}

company() {
  checkpoint 4
  run company "$BIN/prove" company --model "$MODELS/random-4" --context 1024 --cuda "$CUDA"
}

sanitize() {
  for tool in memcheck racecheck; do
    # Kernels' parameters are asked for until the driver refuses, which the tool would count.
    run "$tool" compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 \
      --log-file "$RESULTS/$tool.txt" \
      "$BIN/prove" once --context 256 --rows 48 --cuda "chain,early=off,$CUDA"
    tail -n 12 "$RESULTS/$tool.txt"
  done
}

profile() {
  checkpoint 40
  # Kernels one by one, clocks as they are; the first of the decode steps is as good as any.
  run profile ncu --clock-control none --csv --page raw \
    --metrics gpu__time_duration.sum,dram__bytes.sum "$BIN/prove" once \
    --model "$MODELS/random-40" --context 8192 --rows "${CHUNK:-4096}" --steps 1 \
    --cuda "stream,early=off,$CUDA"
  python3 scripts/gpu/profile.py "$RESULTS/profile.json"
}

bench() {
  checkpoint 40
  run bench "$BIN/lily" bench --model-path "$MODELS/random-40" --device cuda --cuda "$CUDA" \
    --kv-cache bf16 --prefill-chunk "${CHUNK:-4096}" --lengths "${LENGTHS:-512,4096,32768}" \
    --json
  cat "$RESULTS/bench.json"
}

trace() {
  checkpoint 40
  position=${POSITION:-512}
  run trace "$BIN/prove" trace --model "$MODELS/random-40" --context $((position + 4096)) \
    --position "$position" --cuda "$CUDA"
  python3 scripts/gpu/trace.py "$RESULTS/trace.json"
}

ablate() {
  checkpoint 40
  run ablate "$BIN/prove" ablate --model "$MODELS/random-40" --rows "${CHUNK:-4096}" \
    --seconds "$((LIMIT - 60))" --cuda "$CUDA" ${ONLY:+--only "$ONLY"}
}

score() {
  checkpoint 40
  run score "$BIN/prove" score --model "$MODELS/random-40" --context 256 --rows 192 \
    --cuda "activations=f32,$CUDA"
  run score-bf16 "$BIN/prove" score --model "$MODELS/random-40" --context 256 --rows 192 --cuda "$CUDA"
  [ -z "${DEMO:-}" ] || run score-demo "$BIN/prove" score --model "$DEMO" --context 2048 \
    --texts "$TEXTS" --cuda "$CUDA"
}

[ $# -gt 0 ] || set -- all
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
for section in "$@"; do
  case $section in
    all)
      for each in facts steps goldens tokens company sanitize profile trace bench ablate score; do "$each"; done
      ;;
    *) "$section" ;;
  esac
done
if [ -n "$failed" ]; then
  echo "failed:$failed"
  exit 1
fi
echo "all passed"
