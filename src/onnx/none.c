// Refuses ONNX files in a build without protobuf-c.
#include "base/base.h"
#include "mezzo/onnx.h"
#include "onnx/place.h"

static mezzo_status none(void) {
    return mz_fail(
        MEZZO_ERR_UNSUPPORTED,
        "this build reads no ONNX files: install protobuf-c (libprotobuf-c-dev, protobuf-c-compiler) and build again");
}

mezzo_status mezzo_onnx_open(const char *path, mezzo_onnx **out) {
    MZ_REQUIRE(path, out);
    return none();
}

void mezzo_onnx_free(mezzo_onnx *onnx) {
    (void)onnx;
}

int mezzo_onnx_inputs(const mezzo_onnx *onnx) {
    return (void)onnx, 0;
}

int mezzo_onnx_outputs(const mezzo_onnx *onnx) {
    return (void)onnx, 0;
}

mezzo_status mezzo_onnx_input(const mezzo_onnx *onnx, int index, mezzo_onnx_port *out) {
    MZ_REQUIRE(onnx, out);
    return (void)index, none();
}

mezzo_status mezzo_onnx_output(const mezzo_onnx *onnx, int index, mezzo_onnx_port *out) {
    MZ_REQUIRE(onnx, out);
    return (void)index, none();
}

const char *mezzo_onnx_data(const mezzo_onnx *onnx, int index) {
    return (void)onnx, (void)index, NULL;
}

mezzo_status mezzo_onnx_build(mezzo_onnx *onnx, mezzo_graph *graph, int n, const mezzo_onnx_dim *dims,
                              mezzo_value *values) {
    MZ_REQUIRE(onnx, graph, values);
    return (void)n, (void)dims, none();
}

int64_t mz_onnx_place_of(const mezzo_onnx *onnx, const char *parameter, int64_t i) {
    return (void)onnx, (void)parameter, (void)i, -1;
}

const char *mz_onnx_tensor_of(const mezzo_onnx *onnx, const char *parameter) {
    (void)onnx, (void)parameter;
    return NULL;
}

int64_t mz_onnx_rows_named_by(const mezzo_onnx *onnx, const char *input) {
    return (void)onnx, (void)input, 0;
}

int mezzo_onnx_recognized(const mezzo_onnx *onnx, const char *idiom) {
    return (void)onnx, (void)idiom, 0;
}

mezzo_status mezzo_onnx_load(const mezzo_onnx *onnx, mezzo_params *params) {
    MZ_REQUIRE(onnx, params);
    return none();
}

mezzo_status mezzo_onnx_save(const mezzo_onnx *onnx, const mezzo_params *params, bool evaluation, const char *path) {
    (void)evaluation;
    MZ_REQUIRE(onnx, params, path);
    return none();
}
