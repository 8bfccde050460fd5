// mezzo import turns published weights into a run folder; mezzo export turns a checkpoint into a folder that
// transformers or diffusers loads.
#include <math.h>

#include "cli.h"

static const cli_field model_fields[] = {
    {CLI_FIELD(mezzo_model_config, name), "name"},   {CLI_FIELD(mezzo_model_config, layers), "layers"},
    {CLI_FIELD(mezzo_model_config, heads), "heads"}, {CLI_FIELD(mezzo_model_config, d_model), "d_model"},
    {CLI_FIELD(mezzo_model_config, vocab), "vocab"}, {CLI_FIELD(mezzo_model_config, seq_len), "seq_len"},
};

static const cli_field import_fields[] = {
    {CLI_FIELD(mezzo_import_result, parameters), "parameters"},
    {CLI_FIELD(mezzo_import_result, tokenizer), "tokenizer"},
    {CLI_FIELD(mezzo_import_result, adapters), "adapters"},
    {CLI_FIELD(mezzo_import_result, lora_rank), "lora_rank"},
    {CLI_FIELD(mezzo_import_result, lora_alpha), "lora_alpha"},
};
static const cli_field export_fields[] = {
    {CLI_FIELD(mezzo_export_result, tensors), "tensors"},
    {CLI_FIELD(mezzo_export_result, files), "files"},
    {CLI_FIELD(mezzo_export_result, ema), "ema"},
};

static int check(void) {
    CLI_TRY(cli_need_operand());
    if (!cli_has("out") && !cli_has("onnx"))
        return cli_wrong("--out is missing: the folder to create");
    return CLI_DONE;
}

// --- import --------------------------------------------------------------------------------------------------------
static int run_import(void) {
    CLI_TRY(check());
    mezzo_import_options options = {.path = cli_line.operands[0],
                                    .out = cli_text("out", NULL),
                                    .tokenizer = cli_text("tokenizer", NULL),
                                    .adapter = cli_text("adapter", NULL)};
    mezzo_import_result r;
    (void)cli_interruptible();
    CLI_TRY(cli_integer("seq-len", 1, INT64_C(1) << 24, 0, &options.seq_len));
    CLI_TRY(cli_code(mezzo_import(&options, &r)));
    if (cli_has("json")) {
        json_t *o = json_object();
        json_object_set_new(o, "run", cli_json_text(options.out, strlen(options.out)));
        json_object_set_new(o, "model", CLI_OBJECT(model_fields, &r.model));
        return cli_json_print(cli_fields_json(import_fields, MZ_COUNT(import_fields), &r, NULL, o));
    }
    char buf[64], program[512], quoted[4200], most[32] = "";
    if (r.model.positions > r.model.seq_len)
        snprintf(most, sizeof most, " of %lld", (long long)r.model.positions);
    const bool images = mezzo_model_task(&r.model) == MEZZO_TASK_IMAGES;
    cli_thousands((double)r.parameters, buf, sizeof buf);
    if (images)
        printf("%s: %lld x %lld pixels of %lld channels, width %lld; %s parameters\n", r.model.name,
               (long long)r.model.image_size, (long long)r.model.image_size, (long long)r.model.channels,
               (long long)r.model.d_model, buf);
    else
        printf("%s: %lld layers, %lld heads, width %lld, vocabulary %lld, context %lld%s; %s parameters\n",
               r.model.name, (long long)r.model.layers, (long long)r.model.heads, (long long)r.model.d_model,
               (long long)r.model.vocab, (long long)r.model.seq_len, most, buf);
    if (r.adapters > 0)
        printf("%lld adapters of rank %lld, alpha %g\n", (long long)r.adapters, (long long)r.lora_rank, r.lora_alpha);
    cli_quote(cli_line.program, program, sizeof program);
    cli_quote(options.out, quoted, sizeof quoted);
    printf("run folder: %s\nnext:\n", cli_show(options.out).text);
    if (r.tokenizer)
        printf("  %s sample %s --prompt TEXT\n", program, quoted);
    printf("  %s eval %s --data %s\n", program, quoted, images ? "PICTURES" : r.tokenizer ? "FILE" : "SHARDS");
    return CLI_DONE;
}

static const cli_option import_table[] = {
    {"out", "DIR", "the run folder to create"},
    {"adapter", "DIR", "PEFT LoRA adapters for these weights, kept separate: adapter_config.json and its weights"},
    {"tokenizer", "NAME",
     "gpt2, byte, a folder or a file, or none [the one next to the weights, else GPT-2's for a GPT-2]"},
    {"seq-len", "N", "the longest context of sample and eval, and of training by default [the weights', at most 4096]"},
    {"json", NULL, "the result as JSON"},
    {0},
};

const cli_command cli_import = {
    .name = "import",
    .summary = "convert weights of Hugging Face, GGUF or llm.c to a run folder",
    .usage = "DIR|FILE --out DIR [--adapter DIR] [--tokenizer NAME]",
    .details = "DIR has config.json and model.safetensors, or the files that model.safetensors.index.json names; FILE "
               "is one of these, a GGUF file (f32, f16, bf16, q8_0) or llm.c's model file. import creates a run folder "
               "with a checkpoint, for sample, eval and export.",
    .options = import_table,
    .max_operands = 1,
    .operand = "a folder or a file",
    .run = run_import,
};

// --- export --------------------------------------------------------------------------------------------------------
static int run_export(void) {
    static const struct {
        const char *name;
        mezzo_dtype dtype;
    } dtypes[] = {{"fp32", MEZZO_F32}, {"bf16", MEZZO_BF16}, {"fp16", MEZZO_F16}};
    const char *dtype = cli_text("dtype", "fp32");
    size_t chosen = 0;
    double shard = 0; // in GB
    CLI_TRY(check());
    CLI_TRY(cli_number("max-shard-size", 0, 1e6, 0, &shard));
    while (chosen < MZ_COUNT(dtypes) && strcmp(dtypes[chosen].name, dtype) != 0)
        chosen++;
    if (cli_has("gguf") && cli_has("dtype"))
        return cli_wrong("--gguf says the weights' format: leave --dtype out");
    if (chosen == MZ_COUNT(dtypes))
        return cli_wrong("--dtype %s: it must be fp32, bf16 or fp16", dtype);
    const mezzo_export_options options = {.path = cli_line.operands[0],
                                          .out = cli_text("onnx", cli_text("out", NULL)),
                                          .onnx = cli_has("onnx"),
                                          .best = cli_has("best"),
                                          .no_ema = cli_has("no-ema"),
                                          .adapter = cli_has("adapter"),
                                          .dtype = dtypes[chosen].dtype,
                                          .gguf = cli_text("gguf", NULL),
                                          .shard_bytes = (int64_t)ceil(shard * 1e9)};
    mezzo_export_result r;
    (void)cli_interruptible();
    CLI_TRY(cli_code(mezzo_export(&options, &r)));
    if (cli_has("json")) {
        json_t *o = json_object();
        json_object_set_new(o, options.gguf != NULL || options.onnx ? "file" : "folder",
                            cli_json_text(options.out, strlen(options.out)));
        json_object_set_new(o, "checkpoint", cli_json_text(r.checkpoint, strlen(r.checkpoint)));
        json_object_set_new(o, "model", CLI_OBJECT(model_fields, &r.model));
        return cli_json_print(cli_fields_json(export_fields, MZ_COUNT(export_fields), &r, NULL, o));
    }
    printf("%s: %lld tensors in %s, from %s%s\n", cli_show(options.out).text, (long long)r.tensors,
           options.gguf != NULL ? options.gguf : dtype, cli_show(r.checkpoint).text,
           r.ema ? " (averaged weights)" : "");
    return CLI_DONE;
}

static const cli_option export_table[] = {
    {"out", "DIR", "the folder to create; with --gguf, the file"},
    {"onnx", "FILE", "of a model from an ONNX file: that file, with the trained weights"},
    {"gguf", "TYPE", "one file for llama.cpp, weights in f32, f16, bf16 or q8_0, with tokenizer and chat template"},
    {"best", NULL, "use the checkpoint with the lowest validation loss instead of the newest"},
    {"no-ema", NULL, "use the weights, not their moving average, if the run kept one"},
    {"adapter", NULL, "export only the adapters, in PEFT's format; without it, they are merged into the weights"},
    {"dtype", "NAME", "dtype of the weights: fp32, bf16 or fp16 [fp32]"},
    {"max-shard-size", "GB", "split the weights into files of at most this many gigabytes; 0 = one file [0]"},
    {"json", NULL, "the result as JSON"},
    {0},
};

const cli_command cli_export = {
    .name = "export",
    .summary = "write a checkpoint for transformers, llama.cpp (GGUF) or as ONNX",
    .usage = "RUN --out DIR [--best] [--adapter] [--dtype fp32|bf16|fp16] [--max-shard-size GB]\n"
             "       mezzo export RUN --gguf f32|f16|bf16|q8_0 --out FILE.gguf [--best]\n"
             "       mezzo export RUN --onnx FILE.onnx [--best]",
    .details = "RUN is a run folder, or one checkpoint in its checkpoints/. export writes config.json, "
               "model.safetensors and, for a byte-pair tokenizer, vocab.json and merges.txt to DIR; with --gguf one "
               "file for llama.cpp and what builds on it.",
    .options = export_table,
    .max_operands = 1,
    .operand = "a run folder or a checkpoint",
    .run = run_export,
};
