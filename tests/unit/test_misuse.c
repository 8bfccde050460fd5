// A caller's mistakes: NULL, an object that fits no other, sizes, indices and enumerators out of range, calls in the
// wrong order. Each is an error with a message, none a crash, and none changes anything. A table a group: each row is a
// call and what it must give. The last test reads the headers: no public function is without a row.
#include "misuse.h"
TEST(freeing_null_is_fine) {
    PASSES(mezzo_tokenizer_free(NULL));
    PASSES(mezzo_corpus_free(NULL));
    PASSES(mezzo_loader_free(NULL));
    PASSES(mezzo_device_close(NULL));
    PASSES(mezzo_graph_free(NULL));
    PASSES(mezzo_params_free(NULL));
    PASSES(mezzo_program_free(NULL));
    PASSES(mezzo_optimizer_free(NULL));
    PASSES(mezzo_scaler_free(NULL));
    PASSES(mezzo_step_free(NULL));
    PASSES(mezzo_config_free(NULL));
    done();
}

TEST(words_and_numbers) {
    mezzo_precision precision = MEZZO_PRECISION_FP32;
    float x = 1;
    uint16_t half = 0;
    ROW(mezzo_status_name(99), mezzo_status_name((mezzo_status)99) != NULL);
    ROW(mezzo_dtype_name(-1), mezzo_dtype_name((mezzo_dtype)-1) != NULL && mezzo_blocks_name((mezzo_blocks)9) != NULL);
    GIVES(mezzo_dtype_size((mezzo_dtype)99), 0);
    ROW(mezzo_precision_name(99), mezzo_precision_name((mezzo_precision)99) != NULL);
    ROW(mezzo_master_name(99), mezzo_master_name((mezzo_master)99) && mezzo_moments_name((mezzo_moments)99));
    ROW(mezzo_master_default(99), mezzo_master_default((mezzo_precision)99) == MEZZO_MASTER_FP32);
    GIVES(mezzo_precision_needs_loss_scale((mezzo_precision)99), false);
    REFUSED(mezzo_precision_parse(NULL, &precision));
    REFUSED(mezzo_precision_parse("bf16", NULL));
    REFUSED(mezzo_precision_parse("", &precision));
    REFUSED(mezzo_convert(NULL, MEZZO_F32, &half, MEZZO_F16, 1));
    REFUSED(mezzo_convert(&x, MEZZO_F32, NULL, MEZZO_F16, 1));
    GIVES(mezzo_convert(NULL, MEZZO_F32, NULL, MEZZO_F16, 0), MEZZO_OK);
    REFUSED(mezzo_convert(&x, (mezzo_dtype)99, &half, MEZZO_F16, 1));
    REFUSED(mezzo_convert(&x, MEZZO_F32, &half, (mezzo_dtype)-1, 1));
    ROW(mezzo_round_to(1, 99), mezzo_round_to(1, (mezzo_dtype)99) == 1);
    PASSES(mezzo_log_set(NULL, NULL));
    ROW(mezzo_error_message(), mezzo_error_message() != NULL);
    ROW(mezzo_error_trace(), mezzo_error_trace() != NULL);
    ROW(mezzo_version(), mezzo_version() != NULL);
    // Total on all bits: nothing to misuse.
    ROW(mezzo_f32_to_f16(NAN), isnan(mezzo_f16_to_f32(mezzo_f32_to_f16((float)NAN))));
    ROW(mezzo_f64_to_f16(1e300), isinf(mezzo_f16_to_f32(mezzo_f64_to_f16(1e300))));
    ROW(mezzo_f32_to_bf16(NAN), isnan(mezzo_bf16_to_f32(mezzo_f32_to_bf16((float)NAN))));
    ROW(mezzo_f64_to_bf16(NAN), isnan(mezzo_bf16_to_f32(mezzo_f64_to_bf16((double)NAN))));
    ROW(mezzo_f32_to_tf32(NAN), isnan(mezzo_f32_to_tf32((float)NAN)));
    ROW(mezzo_f32_to_e4m3(1e30), isnan(mezzo_e4m3_to_f32(mezzo_f32_to_e4m3(1e30f))));
    ROW(mezzo_f32_to_e5m2(NAN), isnan(mezzo_e5m2_to_f32(mezzo_f32_to_e5m2((float)NAN))));
    ROW(saturating, mezzo_f32_to_e4m3_saturating(1e9f) == 126 && mezzo_f32_to_e5m2_saturating(1e9f) == 123);
    ROW(e2m1, mezzo_e2m1_to_f32(mezzo_f32_to_e2m1(9)) == 6 && isnan(mezzo_e8m0_to_f32(mezzo_f32_to_e8m0(-1))));
    ROW(mezzo_f32_to_bf16_stochastic(NAN), isnan(mezzo_bf16_to_f32(mezzo_f32_to_bf16_stochastic((float)NAN, ~0u))));
    ROW(mezzo_seed(1, 99), mezzo_seed(1, (mezzo_purpose)99) == mezzo_seed(1, (mezzo_purpose)99));
    done();
}

TEST(texts_and_tokens) {
    mezzo_tokenizer *tok = NULL;
    mezzo_corpus *corpus = NULL;
    mezzo_loader *loader = NULL;
    int32_t tokens[8] = {0};
    char text[64];
    size_t n = 0;
    REFUSED(mezzo_tokenizer_create_byte(NULL));
    REFUSED(mezzo_tokenizer_create_char(NULL, 3, &tok));
    REFUSED(mezzo_tokenizer_create_char("abc", 3, NULL));
    REFUSED(mezzo_tokenizer_create_char("", 0, &tok));
    REFUSED(mezzo_tokenizer_create_gpt2(NULL));
    REFUSED(mezzo_tokenizer_create_bpe(NULL, NULL, &tok));
    REFUSED(mezzo_tokenizer_create_bpe(NULL, "text.txt", NULL));
    REFUSED(mezzo_tokenizer_load(NULL, &tok));
    REFUSED(mezzo_tokenizer_load("text.txt", NULL));
    REFUSED(mezzo_tokenizer_save(NULL, "t.json"));
    REFUSED(mezzo_tokenizer_save(w.tok, NULL));
    REFUSED(mezzo_tokenizer_save_bpe(NULL, "."));
    REFUSED(mezzo_tokenizer_save_bpe(w.tok, NULL));
    REFUSED(mezzo_tokenizer_save_bpe(w.tok, "."));
    const char *path = "text.txt";
    REFUSED(mezzo_tokenizer_train(NULL, &tok, NULL));
    REFUSED(mezzo_tokenizer_train(&(mezzo_tokenizer_training){.paths = &path, .n_paths = 1, .vocab = 300}, NULL, NULL));
    REFUSED(mezzo_tokenizer_train(&(mezzo_tokenizer_training){.paths = &path, .n_paths = 1, .vocab = 9}, &tok, NULL));
    REFUSED(mezzo_tokenizer_train(&(mezzo_tokenizer_training){.n_paths = 1, .vocab = 300}, &tok, NULL));
    REFUSED(mezzo_tokenizer_train(
        &(mezzo_tokenizer_training){.paths = &path, .n_paths = 1, .vocab = 300, .n_special = 1}, &tok, NULL));
    GIVES(mezzo_tokenizer_kind(NULL), NULL);
    GIVES(mezzo_tokenizer_vocab(NULL), 0);
    GIVES(mezzo_tokenizer_max_bytes(NULL), 0);
    REFUSED(mezzo_tokenizer_encode(NULL, "a", 1, tokens, &n));
    REFUSED(mezzo_tokenizer_encode(w.tok, NULL, 1, tokens, &n));
    REFUSED(mezzo_tokenizer_encode(w.tok, "a", 1, tokens, NULL));
    GIVES(mezzo_tokenizer_bytes(NULL, 0, &n), NULL);
    GIVES(mezzo_tokenizer_bytes(w.tok, 0, NULL), NULL);
    GIVES(mezzo_tokenizer_bytes(w.tok, 256, &n), NULL);
    GIVES(mezzo_tokenizer_bytes(w.tok, -1, &n), NULL);
    REFUSED(mezzo_tokenizer_decode(NULL, tokens, 1, text, &n));
    REFUSED(mezzo_tokenizer_decode(w.tok, NULL, 1, text, &n));
    REFUSED(mezzo_tokenizer_decode(w.tok, tokens, 1, NULL, &n));
    REFUSED(mezzo_tokenizer_decode(w.tok, tokens, 1, text, NULL));
    REFUSED(mezzo_tokenizer_decode(w.tok, (const int32_t[]){256}, 1, text, &n));
    REFUSED(mezzo_corpus_open(NULL, &corpus));
    REFUSED(mezzo_corpus_open(&(mezzo_corpus_options){.path = "text.txt"}, NULL));
    REFUSED(mezzo_corpus_open(&(mezzo_corpus_options){0}, &corpus));
    REFUSED(mezzo_corpus_open(&(mezzo_corpus_options){.path = "text.txt", .train_fraction = (double)NAN}, &corpus));
    GIVES(mezzo_corpus_tokenizer(NULL), NULL);
    GIVES(mezzo_corpus_tokens(NULL, MEZZO_TRAIN), 0);
    GIVES(mezzo_corpus_tokens(w.corpus, (mezzo_corpus_part)9), 0);
    REFUSED(mezzo_corpus_check(NULL, 5));
    REFUSED(mezzo_corpus_check(w.corpus, 0));
    REFUSED(mezzo_corpus_save(NULL, "shards", MEZZO_SHARD_LLMC));
    REFUSED(mezzo_corpus_save(w.corpus, NULL, MEZZO_SHARD_LLMC));
    REFUSED(mezzo_corpus_save(w.corpus, "shards", (mezzo_shard_format)9));
    REFUSED(mezzo_loader_create(NULL, &(mezzo_loader_options){.batch = 1, .length = 4}, &loader));
    REFUSED(mezzo_loader_create(w.corpus, NULL, &loader));
    REFUSED(mezzo_loader_create(w.corpus, &(mezzo_loader_options){.batch = 1, .length = 4}, NULL));
    REFUSED(mezzo_loader_create(w.corpus, &(mezzo_loader_options){.batch = 0, .length = 4}, &loader));
    REFUSED(mezzo_loader_create(w.corpus, &(mezzo_loader_options){.batch = 1, .length = -4}, &loader));
    REFUSED(mezzo_loader_create(w.corpus, &(mezzo_loader_options){.batch = INT64_MAX, .length = INT64_MAX}, &loader));
    REFUSED(mezzo_loader_create(w.corpus, &(mezzo_loader_options){.batch = 1, .length = 4, .vocab = -1}, &loader));
    REFUSED(mezzo_loader_create(
        w.corpus, &(mezzo_loader_options){.batch = 1, .length = 4, .split = (mezzo_corpus_part)7}, &loader));
    REFUSED(mezzo_loader_create(
        w.corpus, &(mezzo_loader_options){.batch = 1, .length = 4, .order = (mezzo_loader_order)7}, &loader));
    REFUSED(mezzo_loader_batch(NULL, 0, tokens, tokens));
    REFUSED(mezzo_loader_batch(w.loader, 0, NULL, tokens));
    REFUSED(mezzo_loader_batch(w.loader, 0, tokens, NULL));
    REFUSED(mezzo_loader_next(NULL, tokens, tokens));
    REFUSED(mezzo_loader_next(w.loader, NULL, tokens));
    GIVES(mezzo_loader_position(w.loader), 0); // none of these has moved it on
    GIVES(mezzo_loader_position(NULL), 0);
    PASSES(mezzo_loader_seek(NULL, 4));
    GIVES(mezzo_loader_batches(NULL), 0);
    GIVES(mezzo_loader_targets(NULL), 0);
    done();
}

TEST(devices) {
    mezzo_device *device = NULL;
    mezzo_device_info info;
    mezzo_telemetry telemetry;
    mezzo_precision precision;
    double seconds;
    REFUSED(mezzo_device_open(NULL, 1, &device));
    REFUSED(mezzo_device_open("cpu", 1, NULL));
    REFUSED(mezzo_device_open("cpu", -1, &device));
    REFUSED(mezzo_device_open("gpu", 1, &device));
    REFUSED(mezzo_device_describe(NULL, &info));
    REFUSED(mezzo_device_describe(w.device, NULL));
    REFUSED(mezzo_device_telemetry(NULL, &telemetry));
    REFUSED(mezzo_device_telemetry(w.device, NULL));
    PASSES(mezzo_device_reset_peak(NULL));
    REFUSED(mezzo_device_mark(NULL, 0));
    REFUSED(mezzo_device_mark(w.device, -1));
    REFUSED(mezzo_device_mark(w.device, 64));
    REFUSED(mezzo_device_elapsed(NULL, 0, 1, &seconds));
    REFUSED(mezzo_device_elapsed(w.device, 0, 1, NULL));
    REFUSED(mezzo_device_elapsed(w.device, 0, 64, &seconds));
    REFUSED(mezzo_device_sync(NULL));
    REFUSED(mezzo_precision_resolve(NULL, MEZZO_PRECISION_BF16, &precision, NULL, 0));
    REFUSED(mezzo_precision_resolve(w.device, MEZZO_PRECISION_BF16, NULL, NULL, 0));
    REFUSED(mezzo_precision_resolve(w.device, (mezzo_precision)99, &precision, NULL, 0));
    done();
}

// --- models, configurations, runs ------------------------------------------------------------------------------------
TEST(models_and_configurations) {
    mezzo_model_config model;
    mezzo_program_options program;
    mezzo_graph *g;
    const char *rest[2];
    int n;
    must(mezzo_model_defaults("toy", &model));
    mezzo_model_config bad = model;
    bad.layers = -1;
    REFUSED(mezzo_model_defaults(NULL, &model));
    REFUSED(mezzo_model_defaults("toy", NULL));
    REFUSED(mezzo_model_defaults("nothing", &model));
    REFUSED(mezzo_model_check(NULL));
    REFUSED(mezzo_model_check(&bad));
    REFUSED(mezzo_model_check(&(mezzo_model_config){0}));
    must(mezzo_graph_create(&g));
    REFUSED(mezzo_model_build(NULL, &model, 1, 1, true));
    REFUSED(mezzo_model_build(g, NULL, 1, 1, true));
    REFUSED(mezzo_model_build(g, &model, 0, 1, true));
    REFUSED(mezzo_model_build(g, &model, 1, INT64_MAX, true));
    REFUSED(mezzo_model_build_cached(NULL, &model, 1, 1));
    REFUSED(mezzo_model_build_part(NULL, &model, 1, MEZZO_PART_ENCODE));
    REFUSED(mezzo_model_build_part(g, &model, 1, MEZZO_PART_DECODE));
    REFUSED(mezzo_model_build_cached(g, NULL, 1, 1));
    mezzo_graph_free(g);
    GIVES(mezzo_model_task(NULL), MEZZO_TASK_LANGUAGE);
    GIVES(mezzo_model_name(-1), NULL);
    GIVES(mezzo_model_name(mezzo_model_count()), NULL);
    REFUSED(mezzo_config_create(NULL));
    REFUSED(mezzo_config_load(NULL, "text.txt"));
    REFUSED(mezzo_config_load(w.config, NULL));
    REFUSED(mezzo_config_set(NULL, "lr", "1", "here"));
    REFUSED(mezzo_config_set(w.config, NULL, "1", "here"));
    REFUSED(mezzo_config_set(w.config, "lr", NULL, "here"));
    REFUSED(mezzo_config_set(w.config, "lr", "one", NULL));
    REFUSED(mezzo_config_set(w.config, "nothing", "1", "here"));
    REFUSED(mezzo_config_args(NULL, 0, NULL, rest, &n));
    REFUSED(mezzo_config_args(w.config, 1, NULL, rest, &n));
    REFUSED(mezzo_config_args(w.config, 1, ((const char *const[]){"x"}), NULL, &n));
    REFUSED(mezzo_config_args(w.config, 1, ((const char *const[]){"x"}), rest, NULL));
    REFUSED(mezzo_config_args(w.config, 1, ((const char *const[]){"--lr"}), rest, &n));
    GIVES(mezzo_config_get(NULL, "lr"), NULL);
    GIVES(mezzo_config_get(w.config, NULL), NULL);
    GIVES(mezzo_config_get(w.config, "nothing"), NULL);
    REFUSED(mezzo_config_save(NULL, "c.yaml"));
    REFUSED(mezzo_config_save(w.config, NULL));
    REFUSED(mezzo_config_check(NULL));
    REFUSED(mezzo_config_model(NULL, 5, &model));
    REFUSED(mezzo_config_model(w.config, 5, NULL));
    REFUSED(mezzo_config_model(w.config, -5, &model));
    REFUSED(mezzo_config_program(NULL, &program));
    REFUSED(mezzo_config_program(w.config, NULL));
    ROW(mezzo_config_describe(-1), mezzo_config_describe(-1).key == NULL);
    ROW(mezzo_config_describe(mezzo_config_count()), mezzo_config_describe(mezzo_config_count()).key == NULL);
    done();
}

static void write_text(void *user, int index, const char *text, size_t bytes) {
    (void)user, (void)index, (void)text, (void)bytes;
}

TEST(runs_and_folders) {
    mezzo_train_result trained;
    mezzo_bisect_result bisected;
    mezzo_eval_result evaluated;
    mezzo_predict_result predicted;
    mezzo_import_result imported;
    mezzo_export_result exported;
    const mezzo_sample_options sample = mezzo_sample_defaults();
    mezzo_sample_options cold = sample;
    cold.temperature = (double)NAN;
    REFUSED(mezzo_run_train(NULL, NULL, &trained));
    REFUSED(mezzo_run_train(w.config, NULL, NULL)); // it names no data
    REFUSED(mezzo_run_bisect(NULL, NULL, &bisected));
    REFUSED(mezzo_run_bisect(w.config, NULL, NULL));
    REFUSED(mezzo_run_bisect(w.config, NULL, &bisected));
    REFUSED(mezzo_run_eval(NULL, NULL, &evaluated));
    REFUSED(mezzo_run_eval(&(mezzo_eval_options){.path = "."}, NULL, NULL));
    REFUSED(mezzo_run_eval(&(mezzo_eval_options){0}, NULL, &evaluated));
    REFUSED(mezzo_run_eval(&(mezzo_eval_options){.path = ".", .batch_size = -1}, NULL, &evaluated));
    REFUSED(mezzo_run_predict(NULL, NULL, &predicted));
    REFUSED(mezzo_run_predict(&(mezzo_predict_options){.path = ".", .out = "p"}, NULL, NULL));
    REFUSED(mezzo_run_predict(&(mezzo_predict_options){.path = "."}, NULL, &predicted));
    REFUSED(mezzo_run_predict(&(mezzo_predict_options){.path = ".", .out = "p", .count = -1}, NULL, &predicted));
    REFUSED(mezzo_run_sample(NULL, NULL, write_text, NULL));
    REFUSED(mezzo_run_sample(&sample, NULL, write_text, NULL));
    REFUSED(mezzo_run_sample(&sample, NULL, NULL, NULL));
    REFUSED(mezzo_run_sample(&cold, NULL, write_text, NULL));
    mezzo_chat *chat;
    mezzo_chat_answer answer;
    REFUSED(mezzo_chat_open(NULL, &chat));
    REFUSED(mezzo_chat_open(&sample, NULL));
    REFUSED(mezzo_chat_open(&cold, &chat));
    REFUSED(mezzo_chat_reset(NULL, NULL));
    REFUSED(mezzo_chat_say(NULL, "a", NULL, write_text, NULL, &answer));
    REFUSED(mezzo_chat_save(NULL, "a"));
    mezzo_chat_close(NULL);
    REFUSED(mezzo_import(NULL, &imported));
    REFUSED(mezzo_import(&(mezzo_import_options){.out = "i"}, &imported));
    REFUSED(mezzo_import(&(mezzo_import_options){.path = "text.txt"}, &imported));
    REFUSED(mezzo_import(&(mezzo_import_options){.path = ".", .out = "i"}, NULL));
    REFUSED(mezzo_export(NULL, &exported));
    REFUSED(mezzo_export(&(mezzo_export_options){.out = "e"}, &exported));
    REFUSED(mezzo_export(&(mezzo_export_options){.path = "."}, &exported));
    REFUSED(mezzo_export(&(mezzo_export_options){.path = ".", .out = "e"}, NULL));
    done();
}

TEST(checkpoints) {
    char path[256];
    mezzo_checkpoint c = {
        .params = w.params, .optimizer = w.optimizer, .scaler = w.scaler, .step = 1, .precision = "fp32"};
    mezzo_checkpoint negative = c, far = c, other = c, none = {0};
    negative.step = -1;
    far.optimizer = w.far_optimizer;
    other.optimizer = w.more_optimizer;
    REFUSED(mezzo_checkpoint_save(NULL, &c, 0, NULL, 0));
    REFUSED(mezzo_checkpoint_save("kept", NULL, 0, NULL, 0));
    REFUSED(mezzo_checkpoint_save("kept", &none, 0, NULL, 0));
    REFUSED(mezzo_checkpoint_save("kept", &negative, 0, NULL, 0));
    REFUSED(mezzo_checkpoint_save("kept", &c, -1, NULL, 0));
    REFUSED(mezzo_checkpoint_save("kept", &far, 0, NULL, 0));
    REFUSED(mezzo_checkpoint_save("kept", &other, 0, NULL, 0));
    GIVES(mezzo_checkpoint_save("kept", &c, 0, path, sizeof path), MEZZO_OK);
    REFUSED(mezzo_checkpoint_find(NULL, false, path, sizeof path));
    REFUSED(mezzo_checkpoint_find("kept", false, NULL, sizeof path));
    REFUSED(mezzo_checkpoint_find("kept", false, path, 3));
    REFUSED(mezzo_checkpoint_describe(NULL, &none));
    REFUSED(mezzo_checkpoint_describe("kept", NULL));
    GIVES(mezzo_checkpoint_find("kept", false, path, sizeof path), MEZZO_OK);
    mezzo_model_config keys, toy;
    must(mezzo_model_defaults("toy", &toy));
    REFUSED(mezzo_model_describe(NULL, other.model, sizeof other.model));
    REFUSED(mezzo_model_describe(&toy, NULL, sizeof other.model));
    REFUSED(mezzo_model_describe(&toy, other.model, 3));
    GIVES(mezzo_model_describe(&toy, other.model, sizeof other.model), MEZZO_OK);
    REFUSED(mezzo_model_parse(NULL, &keys));
    REFUSED(mezzo_model_parse(other.model, NULL));
    GIVES(mezzo_model_parse(other.model, &keys), MEZZO_OK);
    assert_string_equal(keys.name, "toy");
    GIVES(mezzo_model_parse("{", &keys), MEZZO_ERR_FORMAT);
    REFUSED(mezzo_checkpoint_load(NULL, &c));
    REFUSED(mezzo_checkpoint_load(path, NULL));
    REFUSED(mezzo_checkpoint_load(path, &far));
    REFUSED(mezzo_checkpoint_load(path, &other));
    GIVES(mezzo_checkpoint_load(path, &c), MEZZO_OK);
    must(mz_dir_remove("kept"));
    done();
}

TEST(onnx_files) {
    mezzo_onnx *onnx = NULL;
    mezzo_onnx_port port;
    mezzo_value value;
    PASSES(mezzo_onnx_free(NULL));
    GIVES(mezzo_onnx_inputs(NULL), 0);
    GIVES(mezzo_onnx_outputs(NULL), 0);
    GIVES(mezzo_onnx_data(NULL, 0), NULL);
    GIVES(mezzo_onnx_recognized(NULL, "attention"), 0);
    REFUSED(mezzo_onnx_open(NULL, &onnx));
    REFUSED(mezzo_onnx_open("model.onnx", NULL));
    REFUSED(mezzo_onnx_input(NULL, 0, &port));
    REFUSED(mezzo_onnx_output(NULL, 0, &port));
    REFUSED(mezzo_onnx_build(NULL, w.graph, 0, NULL, &value));
    REFUSED(mezzo_onnx_load(NULL, w.params));
    REFUSED(mezzo_onnx_save(NULL, w.params, false, "model.onnx"));
    done();
}

// --- training --------------------------------------------------------------------------------------------------------
TEST(parameters) {
    mezzo_params *params = NULL;
    float values[VOCAB * WIDTH] = {0};
    const mezzo_program_options zero = {0};
    REFUSED(mezzo_params_create(NULL, w.graph, 1, &params));
    REFUSED(mezzo_params_create(w.device, NULL, 1, &params));
    REFUSED(mezzo_params_create(w.device, w.graph, 1, NULL));
    REFUSED(mezzo_params_create_as(NULL, w.graph, &zero, 1, MEZZO_MASTER_FP32, &params));
    REFUSED(mezzo_params_create_as(w.device, w.graph, NULL, 1, MEZZO_MASTER_SPLIT, &params));
    REFUSED(mezzo_params_create_as(w.device, w.graph, &zero, 1, (mezzo_master)9, &params));
    GIVES(mezzo_params_master(NULL), MEZZO_MASTER_FP32);
    GIVES(mezzo_params_count(NULL), 0);
    GIVES(mezzo_params_elements(NULL), 0);
    static int i;                 // lives through a longjmp
    for (i = -1; i < 3; i += 3) { // before the first, after the last
        GIVES(mezzo_params_name(w.params, i), NULL);
        GIVES(mezzo_params_rank(w.params, i), 0);
        GIVES(mezzo_params_shape(w.params, i), NULL);
        GIVES(mezzo_params_frozen(w.params, i), false);
        REFUSED(mezzo_params_read(w.params, i, values));
        REFUSED(mezzo_params_write(w.params, i, values));
        REFUSED(mezzo_params_read_grad(w.params, i, values));
        REFUSED(mezzo_params_write_grad(w.params, i, values));
    }
    GIVES(mezzo_params_name(NULL, 0), NULL);
    GIVES(mezzo_params_rank(NULL, 0), 0);
    GIVES(mezzo_params_shape(NULL, 0), NULL);
    GIVES(mezzo_params_frozen(NULL, 0), false);
    GIVES(mezzo_params_find(NULL, "head"), -1);
    GIVES(mezzo_params_find(w.params, NULL), -1);
    REFUSED(mezzo_params_read(NULL, 0, values));
    REFUSED(mezzo_params_read(w.params, 0, NULL));
    REFUSED(mezzo_params_write(NULL, 0, values));
    REFUSED(mezzo_params_write(w.params, 0, NULL));
    REFUSED(mezzo_params_read_grad(NULL, 0, values));
    REFUSED(mezzo_params_read_grad(w.params, 0, NULL));
    REFUSED(mezzo_params_write_grad(NULL, 0, values));
    REFUSED(mezzo_params_write_grad(w.params, 0, NULL));
    REFUSED(mezzo_params_zero_grad(NULL));
    done();
}

TEST(programs) {
    const mezzo_program_options zero = {0};
    const mezzo_program_options nowhere = {.overrides = &(mezzo_override){"nowhere", MEZZO_PRECISION_FP32},
                                           .n_overrides = 1};
    const mezzo_program_options unknown = {.precision = (mezzo_precision)99};
    mezzo_program *p = NULL;
    mezzo_memory memory;
    int32_t ids[BATCH] = {0, VOCAB - 1}, targets[BATCH] = {-1, CLASSES - 1}, high[BATCH] = {0, VOCAB},
            low[BATCH] = {-2, 0};
    float loss, logits[BATCH * CLASSES];
    int rank;
    int64_t shape[MEZZO_MAX_RANK];
    bool found;
    char where[64];
    REFUSED(mezzo_program_create(NULL, w.params, &zero, &p));
    REFUSED(mezzo_program_create(w.graph, NULL, &zero, &p));
    REFUSED(mezzo_program_create(w.graph, w.params, NULL, &p));
    REFUSED(mezzo_program_create(w.graph, w.params, &zero, NULL));
    REFUSED(mezzo_program_create(w.graph, w.more, &zero, &p)); // another graph's parameters
    REFUSED(mezzo_program_create(w.small, w.more, &zero, &p)); // no loss
    REFUSED(mezzo_program_create(w.graph, w.params, &nowhere, &p));
    REFUSED(mezzo_program_create(w.graph, w.params, &unknown, &p));
    REFUSED(mezzo_program_run(w.program, NULL, 1, 1)); // nothing was written
    REFUSED(mezzo_program_check(w.program, NULL, 1, 1, &found, where, sizeof where));
    REFUSED(mezzo_step_micro(w.step, 1, 1));
    REFUSED(mezzo_program_write(NULL, "ids", ids, sizeof ids));
    REFUSED(mezzo_program_write(w.program, NULL, ids, sizeof ids));
    REFUSED(mezzo_program_write(w.program, "ids", NULL, sizeof ids));
    REFUSED(mezzo_program_write(w.program, "ids", ids, sizeof ids - 1));
    REFUSED(mezzo_program_write(w.program, "nothing", ids, sizeof ids));
    REFUSED(mezzo_program_write(w.program, "ids", high, sizeof high));
    REFUSED(mezzo_program_write(w.program, "ids", targets, sizeof targets));
    REFUSED(mezzo_program_write(w.program, "targets", ids, sizeof ids));
    REFUSED(mezzo_program_write(w.program, "targets", low, sizeof low));
    GIVES(mezzo_program_write(w.program, "ids", ids, sizeof ids), MEZZO_OK);
    REFUSED(mezzo_program_run(w.program, NULL, 1, 1)); // the targets are still missing
    GIVES(mezzo_program_write(w.program, "targets", targets, sizeof targets), MEZZO_OK);
    REFUSED(mezzo_program_run(NULL, NULL, 1, 1));
    REFUSED(mezzo_program_run(w.program, w.far_scaler, 1, 1));
    REFUSED(mezzo_program_track(NULL));
    REFUSED(mezzo_program_check(NULL, NULL, 1, 1, &found, where, sizeof where));
    REFUSED(mezzo_program_check(w.program, NULL, 1, 1, NULL, where, sizeof where));
    REFUSED(mezzo_program_check(w.program, w.far_scaler, 1, 1, &found, where, sizeof where));
    GIVES(mezzo_program_check(w.program, NULL, 1, 1, &found, NULL, sizeof where), MEZZO_OK);
    GIVES(mezzo_program_run(w.program, NULL, 1, 1), MEZZO_OK);
    REFUSED(mezzo_program_read(NULL, "loss", &loss, sizeof loss));
    REFUSED(mezzo_program_read(w.program, NULL, &loss, sizeof loss));
    REFUSED(mezzo_program_read(w.program, "loss", NULL, sizeof loss));
    REFUSED(mezzo_program_read(w.program, "loss", &loss, 1));
    REFUSED(mezzo_program_read(w.program, "nothing", logits, sizeof logits));
    REFUSED(mezzo_program_output_shape(NULL, "loss", &rank, shape));
    REFUSED(mezzo_program_output_shape(w.program, NULL, &rank, shape));
    REFUSED(mezzo_program_output_shape(w.program, "loss", NULL, shape));
    REFUSED(mezzo_program_output_shape(w.program, "loss", &rank, NULL));
    PASSES(mezzo_program_memory(NULL, &memory));
    PASSES(mezzo_program_memory(w.program, NULL));
    REFUSED(mezzo_plan_memory(NULL, w.graph, &zero, &memory));
    REFUSED(mezzo_plan_memory(w.device, NULL, &zero, &memory));
    REFUSED(mezzo_plan_memory(w.device, w.graph, NULL, &memory));
    REFUSED(mezzo_plan_memory(w.device, w.graph, &zero, NULL));
    REFUSED(mezzo_graph_explain(NULL, &zero, "autocast", on_row, NULL));
    REFUSED(mezzo_graph_explain(w.graph, NULL, "autocast", on_row, NULL));
    REFUSED(mezzo_graph_explain(w.graph, &zero, NULL, on_row, NULL));
    REFUSED(mezzo_graph_explain(w.graph, &zero, "nothing", on_row, NULL));
    REFUSED(mezzo_graph_explain(w.graph, &zero, "autocast", NULL, NULL));
    REFUSED(mezzo_graph_explain_params(NULL, &zero, MEZZO_MASTER_FP32, on_param, NULL));
    REFUSED(mezzo_graph_explain_params(w.graph, NULL, MEZZO_MASTER_FP32, on_param, NULL));
    REFUSED(mezzo_graph_explain_params(w.graph, &zero, MEZZO_MASTER_FP32, NULL, NULL));
    must(mezzo_params_zero_grad(w.params));
    done();
}

TEST(optimizers) {
    mezzo_optimizer *o = NULL;
    mezzo_step_info info;
    mezzo_optimizer_options options = mezzo_optimizer_defaults(), rate = options, kind = options, pattern = options;
    const mezzo_schedule negative = {.kind = MEZZO_LR_CONSTANT, .lr = -1}, unknown = {.kind = 9, .lr = 1};
    rate.schedule.lr = (double)NAN;
    pattern.patterns = (const char *const[]){"nothing"}, pattern.n_patterns = 1;
    ROW(mezzo_optimizer_kind_name(99), mezzo_optimizer_kind_name((mezzo_optimizer_kind)99) != NULL);
    PASSES(mezzo_optimizer_set_kind(NULL, MEZZO_ADAMW));
    PASSES(mezzo_optimizer_set_kind(&kind, (mezzo_optimizer_kind)99));
    REFUSED(mezzo_optimizer_create(NULL, &options, &o));
    REFUSED(mezzo_optimizer_create(w.params, NULL, &o));
    REFUSED(mezzo_optimizer_create(w.params, &options, NULL));
    REFUSED(mezzo_optimizer_create(w.params, &rate, &o));
    REFUSED(mezzo_optimizer_create(w.params, &kind, &o));
    REFUSED(mezzo_optimizer_create(w.params, &pattern, &o));
    REFUSED(mezzo_optimizer_average(NULL, 0, (float[1]){0}));
    REFUSED(mezzo_optimizer_average(w.optimizer, 0, (float[1]){0})); // none is kept
    REFUSED(mezzo_optimizer_clip(NULL, 1));
    REFUSED(mezzo_optimizer_clip(w.optimizer, 1)); // no gradients yet
    REFUSED(mezzo_optimizer_clip(w.optimizer, (double)NAN));
    REFUSED(mezzo_optimizer_step(NULL));
    REFUSED(mezzo_optimizer_step(w.optimizer));
    REFUSED(mezzo_optimizer_zero_grad(NULL));
    REFUSED(mezzo_optimizer_set_schedule(NULL, &options.schedule));
    REFUSED(mezzo_optimizer_set_schedule(w.optimizer, NULL));
    REFUSED(mezzo_optimizer_set_schedule(w.optimizer, &negative));
    REFUSED(mezzo_optimizer_set_schedule(w.optimizer, &unknown));
    ROW(mezzo_schedule_lr(NULL, 1), isnan(mezzo_schedule_lr(NULL, 1)));
    REFUSED(mezzo_optimizer_info(NULL, &info));
    REFUSED(mezzo_optimizer_info(w.optimizer, NULL));
    GIVES(mezzo_optimizer_memory(NULL), 0);
    done();
}

TEST(scalers) {
    mezzo_scaler *s = NULL;
    mezzo_scaler_state kept;
    mezzo_scaler_options options = mezzo_scaler_defaults(), zero = options;
    zero.init_scale = 0;
    REFUSED(mezzo_scaler_create(NULL, &options, &s));
    REFUSED(mezzo_scaler_create(w.device, NULL, &s));
    REFUSED(mezzo_scaler_create(w.device, &options, NULL));
    REFUSED(mezzo_scaler_create(w.device, &zero, &s));
    REFUSED(mezzo_scaler_unscale(NULL, w.optimizer));
    REFUSED(mezzo_scaler_unscale(w.scaler, NULL));
    REFUSED(mezzo_scaler_unscale(w.scaler, w.far_optimizer));
    REFUSED(mezzo_scaler_step(NULL, w.optimizer));
    REFUSED(mezzo_scaler_step(w.scaler, NULL));
    REFUSED(mezzo_scaler_step(w.scaler, w.far_optimizer));
    REFUSED(mezzo_scaler_step(w.scaler, w.optimizer)); // no gradients
    REFUSED(mezzo_scaler_update(NULL));
    REFUSED(mezzo_scaler_update(w.scaler)); // nothing was unscaled
    REFUSED(mezzo_scaler_set_scale(NULL, 2));
    REFUSED(mezzo_scaler_set_scale(w.scaler, -1));
    REFUSED(mezzo_scaler_set_scale(w.scaler, (double)INFINITY));
    REFUSED(mezzo_scaler_get_state(NULL, &kept));
    REFUSED(mezzo_scaler_get_state(w.scaler, NULL));
    GIVES(mezzo_scaler_get_state(w.scaler, &kept), MEZZO_OK);
    mezzo_scaler_state odd = kept;
    odd.growth_interval = 0;
    REFUSED(mezzo_scaler_set_state(NULL, &kept));
    REFUSED(mezzo_scaler_set_state(w.scaler, NULL));
    REFUSED(mezzo_scaler_set_state(w.scaler, &odd));
    done();
}

TEST(steps) {
    mezzo_step *s = NULL;
    mezzo_step_report report;
    mezzo_optimizer *twice[] = {w.optimizer, w.optimizer}, *none[] = {NULL};
    REFUSED(mezzo_step_create(NULL, &w.optimizer, 1, NULL, NULL, &s));
    REFUSED(mezzo_step_create(w.program, NULL, 1, NULL, NULL, &s));
    REFUSED(mezzo_step_create(w.program, none, 1, NULL, NULL, &s));
    REFUSED(mezzo_step_create(w.program, &w.optimizer, 1, NULL, NULL, NULL));
    REFUSED(mezzo_step_create(w.program, &w.optimizer, 0, NULL, NULL, &s));
    REFUSED(mezzo_step_create(w.program, &w.optimizer, 1 << 20, NULL, NULL, &s));
    REFUSED(mezzo_step_create(w.program, twice, 2, NULL, NULL, &s));
    REFUSED(mezzo_step_create(w.program, &w.far_optimizer, 1, NULL, NULL, &s));
    REFUSED(mezzo_step_create(w.program, &w.more_optimizer, 1, NULL, NULL, &s));
    REFUSED(mezzo_step_create(w.program, &w.optimizer, 1, w.far_scaler, NULL, &s));
    REFUSED(mezzo_step_create(w.forward, &w.optimizer, 1, NULL, NULL, &s));
    REFUSED(mezzo_step_create(w.program, &w.optimizer, 1, NULL, &(mezzo_step_options){.micro_batches = -1}, &s));
    REFUSED(mezzo_step_create(w.program, &w.optimizer, 1, NULL, &(mezzo_step_options){.clip = (double)NAN}, &s));
    REFUSED(mezzo_step_micro(NULL, 1, 1));
    REFUSED(mezzo_step_finish(NULL));
    REFUSED(mezzo_step_finish(w.step)); // its micro batch has not run
    REFUSED(mezzo_step_run(NULL, 1, 1, fill_nothing, NULL));
    REFUSED(mezzo_step_run(w.step, 1, 1, NULL, NULL));
    REFUSED(mezzo_step_drop(NULL));
    REFUSED(mezzo_step_set_clip(NULL, 1));
    REFUSED(mezzo_step_set_clip(w.step, -1));
    REFUSED(mezzo_step_read(NULL, true, &report));
    REFUSED(mezzo_step_read(w.step, true, NULL));
    GIVES(mezzo_step_micro(w.step, 1, 1), MEZZO_OK);
    REFUSED(mezzo_step_micro(w.step, 1, 1)); // it has all it takes
    REFUSED(mezzo_step_run(w.step, 1, 1, fill_nothing, NULL));
    GIVES(mezzo_step_finish(w.step), MEZZO_OK); // and after all this it still trains
    done();
}

// --- every public function has a row -------------------------------------------------------------------------------
TEST(every_function_is_here) {
    static const char *const headers[] = {"data",    "device", "dtype", "graph", "model",   "optimizer",
                                          "program", "status", "step",  "train", "version", "onnx"};
    char path[4096], name[128], *text, *tests, *graphs;
    size_t n, functions = 0;
    snprintf(path, sizeof path, "%s/unit/test_misuse.c", getenv("MEZZO_TESTS"));
    must(mz_file_read(path, 1 << 20, &tests, &n));
    snprintf(path, sizeof path, "%s/unit/test_misuse_graphs.c", getenv("MEZZO_TESTS"));
    must(mz_file_read(path, 1 << 20, &graphs, &n));
    for (size_t h = 0; h < MZ_COUNT(headers); h++) {
        snprintf(path, sizeof path, "%s/include/mezzo/%s.h", getenv("MEZZO_SOURCE"), headers[h]);
        must(mz_file_read(path, 1 << 20, &text, &n));
        for (const char *at = text; (at = strstr(at, "MEZZO_API ")) != NULL; at++) {
            const char *open = strchr(at, '('), *from = open;
            while (from > at && (isalnum((unsigned char)from[-1]) || from[-1] == '_'))
                from--;
            if (strncmp(at - 8, "#define ", 8) == 0)
                continue;
            snprintf(name, sizeof name, "%.*s(", (int)(open - from), from);
            if (strstr(tests, name) == NULL && strstr(graphs, name) == NULL)
                fail_msg("%s has no row", name);
            functions++;
        }
        mz_free(text);
    }
    mz_free(tests);
    mz_free(graphs);
    print_message("%zu functions, %d rows\n", functions, rows);
    assert_true(functions > 190);
}

TEST_GROUP(open_world, close_world)
