# The device with its self-test, and configuration files that agree or do not: exit codes, and the lines that are named.
source "$MEZZO_TESTS/cli/check.bash" || exit 1

run 0 doctor --device cpu --threads 1
shows "$OUT" "device      cpu" bf16 fp8 self-test "runs as" ok
fits
run 0 doctor --device cpu --threads 1 --json
shows "$OUT" '"passed": true' '"advice"' '"difference"'

printf 'lr: 1e-3\namp: false\n' >train.yaml
printf "compute_environment: LOCAL_MACHINE\nmixed_precision: 'bf16'\nnum_processes: 1\n" >default_config.yaml
run 1 doctor --config train.yaml default_config.yaml --assume cc=8.0,gpus=1
shows "$OUT" "train.yaml:2 (amp: false)" "default_config.yaml:2" files-disagree "1 conflict"
run 1 doctor --config train.yaml --config default_config.yaml --assume cc=7.5,gpus=1 --json
shows "$OUT" '"conflicts": 2' device-lacks-format '"runs": "bf16"' '"loss_scaler": "not needed"'
printf 'bf16: true\n' >train.yaml
run 0 doctor --config train.yaml default_config.yaml --assume cc=8.0
shows "$OUT" "no conflict"
run 0 doctor --config default_config.yaml train.yaml --assume gpus=0
shows "$OUT" "note: there is no GPU"

# The GPUs of this machine are looked at and not started: by the library that comes with the driver, here one of two T4s.
cat >nvml.c <<'END'
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { return *n = 2, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **card) { return *card = (void *)(unsigned long)(i + 1), i > 1; }
int nvmlDeviceGetName(void *card, char *name, unsigned n) { return strncpy(name, card ? "Tesla T4" : "", n), 0; }
int nvmlDeviceGetCudaComputeCapability(void *card, int *major, int *minor) { return *major = 7, *minor = 5, 0; }
END
${CC:-cc} -shared -fPIC nvml.c -o libnvidia-ml.so.1 || exit 77
export LD_LIBRARY_PATH=$PWD
run 1 doctor --config default_config.yaml
shows "$OUT" "Tesla T4 (compute capability 7.5)" device-lacks-format
CUDA_VISIBLE_DEVICES='' run 0 doctor --config default_config.yaml
shows "$OUT" "note: there is no GPU"
CUDA_VISIBLE_DEVICES=1 run 1 doctor --config default_config.yaml
shows "$OUT" "Tesla T4"
unset LD_LIBRARY_PATH

refuse 2 "cc=8.0" -- doctor --config train.yaml --assume sm_80
refuse 2 "--config" -- doctor train.yaml
refuse 2 "--config" -- doctor --assume cc=8.0
refuse 2 absent.yaml -- doctor --config absent.yaml
printf 'amp: [1\n' >broken.yaml
refuse 2 broken.yaml -- doctor --config broken.yaml
