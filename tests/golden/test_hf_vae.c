// An AutoencoderKL that diffusers saved (make/hf_vae.py), imported, gives diffusers' latents and pictures; exported
// again it has the same tensors, bit for bit. The tolerance is test_hf.c's: the longest path has fewer terms. Seen to
// fail with: halving with padding on both sides; a convolution's weight copied without turning it.
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "golden.h"
#include "io/file.h"
#include "mezzo/train.h"

enum { PICTURES = 2 };

static mezzo_model_config import_to(const char *run) {
    char path[4096];
    mezzo_import_result r;
    must(mz_dir_remove(run));
    must(mezzo_import(&(mezzo_import_options){.path = golden_path("hf_vae", path, sizeof path), .out = run}, &r));
    assert_string_equal(r.model.name, "kl_vae");
    assert_int_equal(r.model.d_model, 4);
    assert_int_equal(r.model.multipliers, 122);
    assert_int_equal(r.model.image_size, 16);
    assert_false(r.tokenizer);
    return r.model;
}

// One part of the model, from `input` to `output`, as stored.
static void expect(const char *run, const mezzo_model_config *config, const char *device, mezzo_model_part part,
                   const char *const names[4]) {
    mezzo_device *d;
    mezzo_graph *whole, *graph;
    mezzo_params *params;
    mezzo_program *program;
    char path[4096], folder[64];
    mz_safetensors *file = golden_tensors("hf_vae_values.safetensors");
    golden_values given = golden_get(file, "%s", names[0]), want = golden_get(file, "%s", names[2]);
    float *x = golden_floats(&given), *got = calloc(want.count, sizeof *got);
    must(mezzo_device_open(device, 2, &d));
    must(mezzo_graph_create(&whole));
    must(mezzo_model_build(whole, config, PICTURES, 1, true));
    must(mezzo_params_create(d, whole, 1, &params));
    mezzo_checkpoint c = {.params = params};
    snprintf(folder, sizeof folder, "%s/checkpoints", run);
    must(mezzo_checkpoint_find(folder, false, path, sizeof path));
    must(mezzo_checkpoint_load(path, &c));
    must(mezzo_graph_create(&graph));
    must(mezzo_model_build_part(graph, config, PICTURES, part));
    must(mezzo_program_create(graph, params, &(mezzo_program_options){.forward_only = true}, &program));
    must(mezzo_program_write(program, names[1], x, given.count * sizeof *x));
    must(mezzo_program_run(program, NULL, 0, 0));
    must(mezzo_program_read(program, names[3], got, want.count * sizeof *got));
    golden_close(names[2], got, &want, 1e-5 * golden_max(&want), 0);
    golden_would_notice(names[2], &want, 0.001, 1e-5 * golden_max(&want));
    mezzo_program_free(program);
    mezzo_graph_free(graph);
    mezzo_graph_free(whole);
    mezzo_params_free(params);
    mezzo_device_close(d);
    golden_free(&given);
    golden_free(&want);
    free(x);
    free(got);
    mz_safetensors_close(file);
}

TEST(diffusers_weights_give_diffusers_pictures) {
    static const char *const encode[] = {"pictures", "image", "latents", "latent"}, *const decode[] = {
                                                                                        "latents", "latent", "decoded",
                                                                                        "prediction"};
    const mezzo_model_config config = import_to("vae");
    const char *devices[] = {test_device(), "ref"};
    for (size_t i = 0; i < MZ_COUNT(devices); i++) {
        expect("vae", &config, devices[i], MEZZO_PART_ENCODE, encode);
        expect("vae", &config, devices[i], MEZZO_PART_DECODE, decode);
    }
}

TEST(what_is_exported_is_what_diffusers_saved) {
    mezzo_export_result r;
    import_to("vae");
    must(mz_dir_remove("vae-exported"));
    must(mezzo_export(&(mezzo_export_options){.path = "vae", .out = "vae-exported", .dtype = MEZZO_F32}, &r));
    mz_safetensors *ours, *theirs = golden_tensors("hf_vae/diffusion_pytorch_model.safetensors");
    must(mz_safetensors_open("vae-exported/diffusion_pytorch_model.safetensors", &ours));
    assert_int_equal(mz_safetensors_count(ours), mz_safetensors_count(theirs));
    for (size_t i = 0; i < mz_safetensors_count(theirs); i++) {
        const mz_safetensors_tensor *want = mz_safetensors_at(theirs, i), *got;
        must(mz_safetensors_get(ours, want->name, &got));
        assert_int_equal(got->rank, want->rank);
        assert_memory_equal(got->shape, want->shape, want->rank * sizeof *want->shape);
        assert_int_equal(got->bytes, want->bytes);
        assert_memory_equal(got->data, want->data, want->bytes);
    }
    mz_safetensors_close(ours);
    mz_safetensors_close(theirs);
}

// What is exported is imported again, also in several files.
TEST(exported_and_imported_again) {
    mezzo_export_result r;
    mezzo_import_result again;
    import_to("vae");
    must(mz_dir_remove("vae-shards"));
    must(mz_dir_remove("vae-again"));
    must(mezzo_export(
        &(mezzo_export_options){.path = "vae", .out = "vae-shards", .dtype = MEZZO_F32, .shard_bytes = 20000}, &r));
    assert_true(r.files > 1);
    must(mezzo_import(&(mezzo_import_options){.path = "vae-shards", .out = "vae-again"}, &again));
    mz_safetensors *a, *b;
    must(mz_safetensors_open("vae/checkpoints/step-00000000/model.safetensors", &a));
    must(mz_safetensors_open("vae-again/checkpoints/step-00000000/model.safetensors", &b));
    assert_int_equal(mz_safetensors_count(a), mz_safetensors_count(b));
    for (size_t i = 0; i < mz_safetensors_count(a); i++) {
        const mz_safetensors_tensor *want = mz_safetensors_at(a, i), *got;
        must(mz_safetensors_get(b, want->name, &got));
        assert_memory_equal(got->data, want->data, want->bytes);
    }
    mz_safetensors_close(a);
    mz_safetensors_close(b);
}

// The names that diffusers gave the tensors of attention before 0.17.
TEST(older_names_are_read) {
    static const char *const names[][2] = {
        {"to_q.", "query."}, {"to_k.", "key."}, {"to_v.", "value."}, {"to_out.0.", "proj_attn."}};
    enum { MOST = 256 };
    static char renamed[MOST][160];
    static mz_safetensors_item items[MOST];
    char command[8300], path[4096];
    mezzo_import_result r;
    mz_safetensors *file = golden_tensors("hf_vae/diffusion_pytorch_model.safetensors");
    size_t changed = 0, count = mz_safetensors_count(file);
    assert_true(count <= MOST);
    for (size_t i = 0; i < count; i++) {
        const mz_safetensors_tensor *t = mz_safetensors_at(file, i);
        snprintf(renamed[i], sizeof renamed[i], "%s", t->name);
        for (size_t k = 0; k < MZ_COUNT(names); k++) {
            const char *at = strstr(t->name, names[k][0]);
            if (at == NULL || strstr(t->name, "attentions") == NULL)
                continue;
            snprintf(renamed[i], sizeof renamed[i], "%.*s%s%s", (int)(at - t->name), t->name, names[k][1],
                     at + strlen(names[k][0]));
            changed++;
        }
        items[i] = (mz_safetensors_item){
            .name = renamed[i], .dtype = t->dtype, .rank = t->rank, .shape = t->shape, .data = t->data};
    }
    assert_int_equal(changed, 16);
    must(mz_dir_create("older"));
    must(mz_safetensors_write("older/diffusion_pytorch_model.safetensors", items, count, NULL, 0, NULL));
    snprintf(command, sizeof command, "cp '%s' older/", golden_path("hf_vae/config.json", path, sizeof path));
    assert_int_equal(system(command), 0);
    import_to("vae");
    must(mz_dir_remove("vae-older"));
    must(mezzo_import(&(mezzo_import_options){.path = "older", .out = "vae-older"}, &r));
    mz_safetensors *a, *b;
    must(mz_safetensors_open("vae/checkpoints/step-00000000/model.safetensors", &a));
    must(mz_safetensors_open("vae-older/checkpoints/step-00000000/model.safetensors", &b));
    assert_int_equal(mz_safetensors_count(a), mz_safetensors_count(b));
    for (size_t i = 0; i < mz_safetensors_count(a); i++)
        assert_memory_equal(mz_safetensors_at(a, i)->data, mz_safetensors_at(b, i)->data,
                            mz_safetensors_at(a, i)->bytes);
    mz_safetensors_close(a);
    mz_safetensors_close(b);
    mz_safetensors_close(file);
}
