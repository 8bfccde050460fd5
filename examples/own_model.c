// Trains the model of an ONNX file on the arrays of an .npz archive, and writes the file with the trained weights.
//
//     cc own_model.c $(pkg-config --cflags --libs mezzo) -lm && ./a.out model.onnx data.npz cross_entropy trained.onnx
#include <stdio.h>

#include "mezzo/mezzo.h"

int main(int argc, char **argv) {
    mezzo_config *config = NULL;
    mezzo_train_result result;
    mezzo_export_result exported;
    static mezzo_export_options to;
    if (argc != 5) {
        printf("usage: %s MODEL.onnx DATA.npz LOSS TRAINED.onnx\n", argv[0]);
        return argc == 1 ? 0 : 2;
    }
    const char *keys[][2] = {{"model.name", argv[1]},   {"data.path", argv[2]},        {"model.loss", argv[3]},
                             {"train.steps", "200"},    {"train.batch_size", "16"},    {"optimizer.lr", "1e-2"},
                             {"amp.precision", "auto"}, {"train.out", "own_model_run"}};
    mezzo_status status = mezzo_config_create(&config);
    for (size_t i = 0; status == MEZZO_OK && i < sizeof keys / sizeof keys[0]; i++)
        status = mezzo_config_set(config, keys[i][0], keys[i][1], "own_model.c");
    if (status == MEZZO_OK)
        status = mezzo_run_train(config, NULL, &result);
    to.path = "own_model_run";
    to.out = argv[4];
    to.dtype = MEZZO_F32;
    to.onnx = true;
    if (status == MEZZO_OK)
        status = mezzo_export(&to, &exported);
    if (status == MEZZO_OK)
        printf("%s: loss %.4f after %lld steps\n", argv[4], result.loss, (long long)result.steps);
    else
        fprintf(stderr, "own_model: %s\n", mezzo_error_message());
    mezzo_config_free(config);
    return status == MEZZO_OK ? 0 : 3;
}
