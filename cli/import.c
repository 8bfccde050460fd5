// mezzo import turns published weights into a run folder; mezzo export turns a checkpoint into a folder that
// transformers or diffusers loads.
#include <math.h>

#include "cli.h"

static const mz_row_field model_fields[] = {
    {MZ_FIELD(mezzo_model_config, name), "name"},   {MZ_FIELD(mezzo_model_config, layers), "layers"},
    {MZ_FIELD(mezzo_model_config, heads), "heads"}, {MZ_FIELD(mezzo_model_config, d_model), "d_model"},
    {MZ_FIELD(mezzo_model_config, vocab), "vocab"}, {MZ_FIELD(mezzo_model_config, seq_len), "seq_len"},
};

static const mz_row_field import_fields[] = {
    {MZ_FIELD(mezzo_import_result, parameters), "parameters"}, {MZ_FIELD(mezzo_import_result, tokenizer), "tokenizer"},
    {MZ_FIELD(mezzo_import_result, adapters), "adapters"},     {MZ_FIELD(mezzo_import_result, lora_rank), "lora_rank"},
    {MZ_FIELD(mezzo_import_result, lora_alpha), "lora_alpha"},
};
static const mz_row_field export_fields[] = {
    {MZ_FIELD(mezzo_export_result, tensors), "tensors"},
    {MZ_FIELD(mezzo_export_result, files), "files"},
    {MZ_FIELD(mezzo_export_result, ema), "ema"},
};

static int check(void) {
    return cli_has("out") || cli_has("onnx") ? CLI_DONE : cli_wrong("--out is missing: the folder to create");
}

// --- import --------------------------------------------------------------------------------------------------------
int cli_import(void) {
    CLI_TRY(check());
    mezzo_import_options options = {.path = cli_line.operands[0],
                                    .out = cli_text("out", NULL),
                                    .tokenizer = cli_text("tokenizer", NULL),
                                    .adapter = cli_text("adapter", NULL)};
    mezzo_import_result r;
    (void)cli_interrupts(NULL);
    CLI_TRY(cli_integer("seq-len", 1, INT64_C(1) << 24, 0, &options.seq_len));
    CLI_DO(mezzo_import(&options, &r));
    if (cli_has("json")) {
        json_t *o = json_pack("{so so}", "run", mz_json_text(options.out), "model", MZ_OBJECT(model_fields, &r.model));
        return cli_json_print(mz_fields_json(import_fields, MZ_COUNT(import_fields), &r, NULL, o));
    }
    char most[32] = "";
    const mz_short parameters = mz_count_text((double)r.parameters);
    if (r.model.positions > r.model.seq_len)
        snprintf(most, sizeof most, " of %lld", (long long)r.model.positions);
    const bool images = mezzo_model_task(&r.model) == MEZZO_TASK_IMAGES;
    if (images)
        printf("%s: %lld x %lld pixels of %lld channels, width %lld; %s parameters\n", r.model.name,
               (long long)r.model.image_size, (long long)r.model.image_size, (long long)r.model.channels,
               (long long)r.model.d_model, parameters.text);
    else
        printf("%s: %lld layers, %lld heads, width %lld, vocabulary %lld, context %lld%s; %s parameters\n",
               r.model.name, (long long)r.model.layers, (long long)r.model.heads, (long long)r.model.d_model,
               (long long)r.model.vocab, (long long)r.model.seq_len, most, parameters.text);
    if (r.adapters > 0)
        printf("%lld adapters of rank %lld, alpha %g\n", (long long)r.adapters, (long long)r.lora_rank, r.lora_alpha);
    printf("run folder: %s\nnext:\n", mz_show(options.out).text);
    if (r.tokenizer)
        printf("  %s sample %s --prompt TEXT\n", cli_quoted(cli_line.program).text, cli_quoted(options.out).text);
    printf("  %s eval %s --data %s\n", cli_quoted(cli_line.program).text, cli_quoted(options.out).text,
           images        ? "PICTURES"
           : r.tokenizer ? "FILE"
                         : "SHARDS");
    return CLI_DONE;
}

// --- export --------------------------------------------------------------------------------------------------------
int cli_export(void) {
    static const struct {
        const char *name;
        mezzo_dtype dtype;
    } dtypes[] = {{"fp32", MEZZO_F32}, {"bf16", MEZZO_BF16}, {"fp16", MEZZO_F16}};
    const char *dtype = cli_text("dtype", "fp32");
    const size_t chosen = MZ_INDEX(dtypes, MZ_COUNT(dtypes), name, dtype);
    double shard = 0; // in GB
    const char *mode = cli_text("mode", "training");
    CLI_TRY(check());
    if (strcmp(mode, "training") != 0 && strcmp(mode, "evaluation") != 0)
        return cli_wrong("--mode %s: it must be training or evaluation", mode);
    if (cli_has("mode") && !cli_has("onnx"))
        return cli_wrong("--mode is for files of --onnx");
    CLI_TRY(cli_number("max-shard-size", 0, 1e6, 0, &shard));
    if (cli_has("gguf") && cli_has("dtype"))
        return cli_wrong("--gguf says the weights' format: leave --dtype out");
    if (chosen == MZ_COUNT(dtypes))
        return cli_wrong("--dtype %s: it must be fp32, bf16 or fp16", dtype);
    const mezzo_export_options options = {.path = cli_line.operands[0],
                                          .out = cli_text("onnx", cli_text("out", NULL)),
                                          .onnx = cli_has("onnx"),
                                          .evaluation = strcmp(mode, "evaluation") == 0,
                                          .best = cli_has("best"),
                                          .no_ema = cli_has("no-ema"),
                                          .adapter = cli_has("adapter"),
                                          .dtype = dtypes[chosen].dtype,
                                          .gguf = cli_text("gguf", NULL),
                                          .shard_bytes = (int64_t)ceil(shard * 1e9)};
    mezzo_export_result r;
    (void)cli_interrupts(NULL);
    CLI_DO(mezzo_export(&options, &r));
    if (cli_has("json")) {
        json_t *o =
            json_pack("{so so so}", options.gguf != NULL || options.onnx ? "file" : "folder", mz_json_text(options.out),
                      "checkpoint", mz_json_text(r.checkpoint), "model", MZ_OBJECT(model_fields, &r.model));
        return cli_json_print(mz_fields_json(export_fields, MZ_COUNT(export_fields), &r, NULL, o));
    }
    printf("%s: %lld tensors in %s, from %s%s\n", mz_show(options.out).text, (long long)r.tensors,
           options.gguf != NULL ? options.gguf : dtype, mz_show(r.checkpoint).text, r.ema ? " (averaged weights)" : "");
    return CLI_DONE;
}
