#!/usr/bin/env bash
# What only a GPU can show, in nine minutes at most: benchmarks/gpu/run.sh OUT [VIDEOS]
#
# In order of worth: the machine, the tests that need a GPU, training steps with and without vidssl's BatchNorm3d and
# torch.compile, training from files and from packed frames with the augmentation on the CPU and on the device, decoding
# by nvdec, and a short training of small_gpu. OUT/summary.txt has the exit status and the seconds of each; figures are
# in OUT/NAME.json, what was printed in OUT/NAME.txt, the network in OUT/network.safetensors (float16), its losses in
# OUT/network.jsonl. A step that fails stops no other; then the script's status is 1.
#
# VIDEOS is a folder of 64 videos or more, 40 s in all at least; without it moving digits are rendered: 64 videos of
# 10 s, 256x256. PYTHON is the interpreter, with what `pip install -e '.[dev]'` installs. Nothing is downloaded.
# DEVICE=cpu TINY=1 benchmarks/gpu/run.sh OUT runs all of it on a CPU with the smallest settings; its figures mean nothing.
set -u

OUT=$(realpath -m "${1:?where to: benchmarks/gpu/run.sh OUT [VIDEOS]}")
VIDEOS=${2:+$(realpath "$2")}
cd "$(dirname "$0")/../.." || exit
mkdir -p "$OUT" || exit
[ -z "$(ls -A "$OUT")" ] || { echo "$OUT is not empty: name another folder" >&2; exit 2; }
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
DEVICE=${DEVICE:-cuda}
PYTHON=${PYTHON:-python3}
PROCESSES=$(nproc)
deadline=0 # seconds after the start
failed=0

# NAME SECONDS COMMAND …: a step may also use the time that those before it left; those after it keep theirs.
step() {
  local name=$1 start=$SECONDS left status=0
  deadline=$((deadline + $2))
  left=$((deadline - start))
  shift 2
  timeout --kill-after=5 $((left > 0 ? left : 1)) "$@" >"$OUT/$name.txt" 2>&1 </dev/null || status=$?
  [ $status = 0 ] || failed=1
  printf '%-20s %6d %7d  %s\n' "$name" $status $((SECONDS - start)) "$(cd "$OUT" && echo "$name".*)" >>"$OUT/summary.txt"
}

# NAME SECONDS SCRIPT …: a benchmark and its arguments.
measure() {
  local name=$1 limit=$2 script=$3
  shift 3
  step "$name" "$limit" "$PYTHON" "benchmarks/$script" "$@" --json "$OUT/$name.json"
}

export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
# torch and matplotlib warn where they cannot write to the home folder.
export MPLCONFIGDIR=$WORK/matplotlib TORCHINDUCTOR_CACHE_DIR=$WORK/inductor PYTORCH_KERNEL_CACHE_PATH=$WORK/kernels
export VIDSSL_BENCH_LIBRARIES=$WORK/ffmpeg
mkdir -p "$WORK"/{kernels,ffmpeg,videos}
# torchcodec finds FFmpeg's libraries under their own names: those that PyAV brings.
for library in "$("$PYTHON" -c 'import av, pathlib; print(pathlib.Path(av.__file__).parents[1])')"/av.libs/lib[as][vw]*.so.*; do
  file=${library##*/}
  version=${file##*.so.}
  ln -sf "$library" "$WORK/ffmpeg/${file%%-*}.so.${version%%.*}"
done
export LD_LIBRARY_PATH=$WORK/ffmpeg${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

digits=(--train 4 --test 0 --frames 250 --size 256)
r18=(--setting resnet3d18 8 112 --batch 64)
r18_16=(--setting resnet3d18 16 112 --batch 64)
r50=(--setting resnet3d50 8 224 --batch 32)
steps=(--device "$DEVICE" --only-vidssl --rounds 3 --steps 5)
compile=inductor
loader=(--workers $((PROCESSES - 1)) --seconds 3)
decode=(--backends pyav nvdec --rounds 12)
training=(steps=100 checkpoint.every=50 data.workers=$((PROCESSES - 1)))
sets=16
tests=(--numprocesses 12 --dist worksteal)
required=gpu # a test that finds no GPU fails
if [ -n "${TINY:-}" ]; then
  digits=(--train 4 --test 0 --frames 30 --size 64)
  r18=(--setting resnet3d18 4 32 --width 8 --batch 2)
  r18_16=("${r18[@]}") r50=("${r18[@]}")
  steps=(--device "$DEVICE" --only-vidssl --rounds 1 --steps 1 --queue 256 --product 256)
  compile=eager # no code is generated
  loader=(--workers 1 --seconds 0.2)
  decode=(--backends pyav torchcodec --clips 1 --seconds 2 --rounds 2)
  view='{name: strong, size: 32}'
  training=(steps=2 batch_size=4 precision=float32 data.workers=1 data.sampler.frames=4 "data.views=[$view, $view]"
    backbone.streams.rgb.width=8 backbone.streams.differences.width=8)
  sets=1
  tests=()
  deadline=300 # machines of tests are slow
fi
[ "$DEVICE" = cuda ] || required=

printf '%-20s %6s %7s  %s\n' step status seconds files >"$OUT/summary.txt"
[ "$DEVICE" = cpu ] || step gpu 5 nvidia-smi
step versions 30 "$PYTHON" -m torch.utils.collect_env
step doctor 15 "$PYTHON" -m vidssl doctor

mapfile -t files < <(grep -rlF mark.gpu tests --include='test_*.py')
step tests 80 env VIDSSL_REQUIRE=$required "$PYTHON" -m pytest -v -m gpu -p no:cacheprovider --durations 20 \
  --junitxml "$OUT/tests.xml" "${tests[@]}" "${files[@]}"

measure steps_r18 20 train_step.py "${r18[@]}" "${steps[@]}" --torch-norms --profile
measure steps_r50 35 train_step.py "${r50[@]}" "${steps[@]}" --torch-norms --profile
measure steps_r18_16 20 train_step.py "${r18_16[@]}" "${steps[@]}" --torch-norms
measure compiled_r18 60 train_step.py "${r18[@]}" "${steps[@]}" --torch-norms --compile $compile
measure compiled_r50 50 train_step.py "${r50[@]}" "${steps[@]}" --compile $compile

if [ -z "$VIDEOS" ]; then
  VIDEOS=$WORK/videos
  step digits 25 sh -c 'seq "$0" | xargs -P "$0" -I {seed} "$@"' $sets \
    "$PYTHON" -m vidssl prepare moving-digits "${digits[@]}" --seed {seed} --out "$VIDEOS/{seed}"
fi
step list 10 "$PYTHON" -m vidssl prepare folder "$VIDEOS" --test 0 --labels none --out "$WORK/lists"
path=(--device "$DEVICE" --clips "$WORK/lists/train.csv" --sources files frames "${loader[@]}")
measure data_path_r18 50 data_path.py "${path[@]}" "${r18[@]}"
measure data_path_r50 45 data_path.py "${path[@]}" "${r50[@]}"
measure decode 25 decode.py --videos "$VIDEOS" "${decode[@]}"
step small_gpu 50 "$PYTHON" -m vidssl train --cfg configs/pretrain/small_gpu.yaml "data.train=$WORK/lists/train.csv" \
  "output=$WORK/small_gpu" "device=$DEVICE" data.augment=device log_every=10 'evaluate={clips: 4, crops: 1}' "${training[@]}"
step network 10 "$PYTHON" -c '
import shutil, sys, vidssl
run, out = sys.argv[1:]
shutil.copy(f"{run}/metrics.jsonl", f"{out}/network.jsonl")
vidssl.save_backbone(run, f"{out}/network.safetensors", half=True)
' "$WORK/small_gpu" "$OUT"

cat "$OUT/summary.txt"
exit $failed
