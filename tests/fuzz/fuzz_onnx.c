// Any bytes as an ONNX file: refused with a message, or built into a graph, whose errors have one too.
#include "fuzz/folder.h"
#include "io/file.h"
#include "mezzo/onnx.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = fuzz_path("model.onnx");
    mezzo_onnx *onnx = NULL;
    mezzo_graph *graph = NULL;
    if (mz_file_write_atomic(path, data, size) != MEZZO_OK)
        return 0;
    if (mezzo_onnx_open(path, &onnx) != MEZZO_OK) {
        if (onnx != NULL || mezzo_error_message()[0] == '\0')
            __builtin_trap();
    } else if (mezzo_onnx_outputs(onnx) <= 64 && mezzo_graph_create(&graph) == MEZZO_OK) {
        mezzo_value values[64];
        if (mezzo_onnx_build(onnx, graph, 0, NULL, values) != MEZZO_OK && mezzo_error_message()[0] == '\0')
            __builtin_trap();
    }
    mezzo_graph_free(graph);
    mezzo_onnx_free(onnx);
    return 0;
}
