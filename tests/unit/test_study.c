// A study's rows to pairs, crossings, rules and advice.
// Seen to fail with: pairs made across rungs; crossings interpolated in tokens instead of their logarithm; downward
// crossings left out; folds that split a shape; ">" for ">=" at a rule's threshold.
#include <math.h>

#include "fixture.h"
#include "io/file.h"
#include "study/analyse/analysis.h"
#include "study/analyse/decide.h"

#define HEAD "layers,d_model,bs,seqlen,prec,rung,ga,final_bs,final_seqlen,tps,mem_gb,energy_j,avg_power_w,times\n"

static void loaded(const char *text, mz_study *out) {
    must(mz_file_write_atomic("study.csv", text, strlen(text)));
    must(mz_study_load("study.csv", NULL, NULL, NULL, out));
}

static void refused(const char *text, const char *words) {
    mz_study s;
    must(mz_file_write_atomic("study.csv", text, strlen(text)));
    must_fail(mz_study_load("study.csv", NULL, NULL, NULL, &s), MEZZO_ERR_FORMAT, words);
}

TEST(test_pairs) {
    mz_study s;
    loaded(HEAD "4,128,1,64,fp32,base,1,1,64,1000,2.0,6.4,100,\"[0.064, 0.064]\"\n"
                "4,128,1,64,bf16,base,1,1,64,1500,1.5,,,\n"
                "4,128,2,64,fp32,recompute,1,2,64,1000,2.0,,,\n" // another rung: apart
                "4,128,2,64,bf16,base,1,2,64,2000,1.0,,,\n"
                "4,128,4,64,fp32,ga2,2,4,64,1000,,,,\n" // the same rung and shape: a pair
                "4,128,4,64,bf16,ga2,2,4,64,500,,,,\n"
                "4,128,8,64,bf16,base,1,8,64,500,,,,\n" // alone
                "4,128,16,64,fp32,none,,,,,,,,\n"       // fitted nowhere
                "4,128,16,64,bf16,base,1,16,64,700,,,,\n"
                "4,128,1,64,fp16,base,1,1,64,1200,,,,\n",
           &s);
    assert_int_equal(s.n_pairs, 2);
    assert_true(s.pairs[0].speedup == 1.5 && s.pairs[1].speedup == 0.5);
    assert_true(s.pairs[0].mem_saving_pct == 25);
    assert_true(isnan(s.pairs[0].energy_gain_pct)); // not known is not zero
    assert_int_equal(s.pairs[1].tokens, 256);
    assert_int_equal(s.n_unequal, 1);
    assert_int_equal(s.unequal[0].key.bs, 2);
    assert_int_equal(s.n_failed, 1);
    assert_int_equal(s.n_alone, 2);
    assert_string_equal(s.candidate, "bf16");
    assert_string_equal(s.others, "fp16");
    assert_false(s.energy_remade);
    assert_int_equal(s.inconsistent, 0);
    // What is written reads back as the same pairs.
    mz_study again;
    must(mz_pairs_save(&s, "pairs.csv"));
    must(mz_study_load("pairs.csv", NULL, NULL, NULL, &again));
    assert_int_equal(again.n_pairs, 2);
    assert_true(again.pairs[0].speedup == 1.5 && again.pairs[0].mem_saving_pct == 25 &&
                isnan(again.pairs[0].energy_gain_pct));
    assert_string_equal(again.pairs[1].adj_amp, "ga2");
    assert_int_equal(again.pairs[1].ga_amp, 2);
    mz_study_free(&again);
    mz_study_free(&s);
}

TEST(test_energy) { // energies that are power over another window are made anew
    mz_study s;
    loaded(HEAD "4,128,1,100,fp32,base,1,1,100,1000,,50,100,\n" // a step takes 0.1 s at 100 W: 10 J, not 50
                "4,128,1,100,amp,base,1,1,100,2000,,40,160,\n", // 0.05 s at 160 W: 8 J, not 40
           &s);
    assert_true(s.energy_remade && fabs(s.energy_ratio - 5) < 1e-12);
    assert_true(fabs(s.pairs[0].energy_gain_pct - 20) < 1e-12);
    mz_study_free(&s);
}

// Other people's tables: empty rungs, integers that pandas wrote as floats, columns of other names.
TEST(test_others_tables) {
    mz_study s;
    loaded("layers,d_model,bs,seqlen,speedup_amp_over_fp32,adj_amp,adj_fp32,ga_amp,ga_fp32\n"
           "4,128,1,64,1.5,,,,\n4,128,2.0,64,2.5,base,,1.0,1\n4,128,4,64,2.5,half_batch,,,\n",
           &s);
    assert_int_equal(s.n_pairs, 2);
    assert_string_equal(s.pairs[0].adj_amp, "base");
    assert_int_equal(s.pairs[1].key.bs, 2);
    assert_int_equal(s.n_unequal, 1);
    mz_study_free(&s);
    static const char text[] =
        "depth,width,bs,seqlen,mode,throughput,rung\n4,128,1,64,fp32,1000,\n4,128,1,64,amp,1500,\n";
    must(mz_file_write_atomic("study.csv", text, sizeof text - 1));
    must(mz_study_load("study.csv", "depth=layers,width=d_model,mode=prec,throughput=tps", NULL, NULL, &s));
    assert_int_equal(s.n_pairs, 1);
    assert_true(s.pairs[0].speedup == 1.5);
    mz_study_free(&s);
    static const char *const wrong[][2] = {{"depht=layers", "no column 'depht'"},
                                           {"depth=bs", "a column 'bs' already"},
                                           {"depth", "expected THEIRS=OURS"},
                                           {"depth=layers,,", "expected THEIRS=OURS"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        must_fail(mz_study_load("study.csv", wrong[i][0], NULL, NULL, &s), MEZZO_ERR_INVALID, wrong[i][1]);
    }
}

TEST(test_refuses) {
    refused("", "empty");
    refused("layers,d_model,bs,seqlen,prec,tps\n", "a header and no row");
    refused("layers,d_model,bs,prec,tps\n4,128,1,fp32,10\n", "needs the column 'seqlen'; there are 'layers'");
    refused("layers,width,speed\n4,128,1\n", "--columns THEIRS=d_model,THEIRS=bs,THEIRS=seqlen,THEIRS=prec,THEIRS=tps");
    refused("layers,d_model,bs,seqlen,prec,tps\n4,128,1,64,fp32,ten\n",
            "study.csv:2: column 'tps': expected a number, got 'ten'");
    refused("layers,d_model,bs,seqlen,prec,tps\n4,128,1,64,fp32,0\n", "above 0");
    refused("layers,d_model,bs,seqlen,prec,tps\n4,128,1,64,fp32,nan\n", "above 0");
    refused("layers,d_model,bs,seqlen,prec,tps\n4,128,0,64,fp32,1\n", "column 'bs'");
    refused("layers,d_model,bs,seqlen,prec,tps,times\n4,128,1,64,fp32,10,\"[0.1, -0.1]\"\n", "column 'times'");
    refused("layers,d_model,bs,seqlen,prec,tps,times\n4,128,1,64,fp32,10,\"[0.1, 0]\"\n", "column 'times'");
    refused("layers,d_model,bs,seqlen,prec,tps,times\n4,128,1,64,fp32,10,\"[0.1, x]\"\n", "expected numbers, got 'x'");
    refused("layers,d_model,bs,seqlen,prec,tps,times\n4,128,1,64,fp32,10,\"[0.1,\"\"\"\n", "column 'times'");
    refused("layers,d_model,bs,seqlen,prec,tps\n4,128,1,64,fp32,10\n4,128,1,64,fp32,11\n4,128,1,64,amp,11\n",
            "study.csv:3: the same key twice: layers 4, d_model 128, bs 1, seqlen 64, fp32 is in line 2 too");
    refused("layers,d_model,bs,seqlen,prec,tps\n4,128,1,64,fp32,10\n4,128,2,64,amp,11\n",
            "have no partner, the first is layers 4");
    refused("layers,d_model,bs,seqlen,prec,tps\n4,128,1,64,fp32,10\n", "nothing to compare");
    refused("layers,d_model,bs,seqlen,speedup_amp_over_fp32\n4,128,1,64,1.5\n4,128,1,64,1.6\n", "the same key twice");
    refused("layers,d_model,bs,seqlen,speedup_amp_over_fp32\n4,128,1,64,-1\n", "above 0");
}

// One pair a point at width 256: the median is the value itself.
static void curve_of(const double *speedups, size_t n, mz_study *s, mz_analysis *a) {
    mz_text t = {0};
    mz_text_addf(&t, "layers,d_model,bs,seqlen,speedup_amp_over_fp32\n");
    for (size_t i = 0; i < n; i++)
        mz_text_addf(&t, "4,256,1,%d,%.17g\n", 64 << i, speedups[i]);
    loaded(t.data, s);
    mz_text_free(&t);
    must(mz_analyze(s, 200, 1, a));
}

TEST(test_crossings) {
    mz_study s;
    mz_analysis a;
    // Up half-way in ln(speedup) between 64 and 128, down at a third between 256 and 512: e^(-1/3·…)
    const double values[] = {0.5, 2, 1.25, 0.64};
    curve_of(values, 4, &s, &a);
    assert_int_equal(a.n_curves, 1);
    assert_int_equal(a.curves[0].n_crossings, 2);
    const mz_crossing *up = &a.curves[0].crossings[0], *down = &a.curves[0].crossings[1];
    assert_true(up->up && !down->up);
    assert_true(fabs(up->tokens - 64 * sqrt(2)) < 1e-9);
    assert_true(fabs(down->tokens - 256 * pow(2, log(1.25) / (log(1.25) - log(0.64)))) < 1e-9);
    assert_true(isnan(up->interval.low) && isnan(down->interval.high)); // nothing was repeated: no interval
    mz_rules rules;
    must(mz_rules_fit(s.pairs, s.n_pairs, &rules));
    assert_true(mz_rule_decides(&rules.rules[0], 128) && !mz_rule_decides(&rules.rules[0], 64));
    mz_rules_free(&rules);
    mz_analysis_free(&a);
    mz_study_free(&s);
    const double touching[] = {0.5, 1, 0.5}; // touches 1 and does not cross
    curve_of(touching, 3, &s, &a);
    assert_int_equal(a.curves[0].n_crossings, 0);
    mz_analysis_free(&a);
    mz_study_free(&s);
    const double through[] = {0.5, 1, 2}; // crosses at the point that is exactly 1
    curve_of(through, 3, &s, &a);
    assert_int_equal(a.curves[0].n_crossings, 1);
    assert_true(fabs(a.curves[0].crossings[0].tokens - 128) < 1e-9);
    mz_analysis_free(&a);
    mz_study_free(&s);
}

static mz_pair pair(int64_t layers, int64_t d_model, int64_t tokens, double speedup) {
    return (mz_pair){.key = {layers, d_model, 1, tokens}, .tokens = tokens, .speedup = speedup};
}

TEST(test_rules) {
    // At width 256 the candidate wins from 200 on, at width 512 always; one shape in the middle costs little either
    // way.
    const mz_pair pairs[] = {pair(4, 256, 100, 0.5),  pair(4, 256, 200, 1.5), pair(4, 256, 400, 2),
                             pair(4, 256, 800, 0.99), pair(4, 512, 100, 1.1), pair(4, 512, 200, 1.2)};
    mz_rules rules;
    must(mz_rules_fit(pairs, MZ_COUNT(pairs), &rules));
    assert_int_equal(rules.n, 2);
    assert_int_equal(rules.rules[0].kind, MZ_RULE_FROM);
    assert_true(fabs(rules.rules[0].threshold - 100 * sqrt(2)) < 1e-9);
    assert_int_equal(rules.rules[0].right, 3);
    assert_true(fabs(rules.rules[0].log_regret - -log(0.99) / 4) < 1e-12);
    assert_int_equal(rules.rules[1].kind, MZ_RULE_ALWAYS);
    assert_int_equal(rules.rules[1].least_width, 363); // the geometric mean of 256 and 512, upward
    mz_score score = mz_rules_score(&rules, pairs, MZ_COUNT(pairs));
    assert_true(fabs(score.accuracy - 5.0 / 6) < 1e-12);
    // Through the file and back.
    mz_rules again;
    snprintf(rules.name, sizeof rules.name, "mine");
    snprintf(rules.source, sizeof rules.source, "a test");
    must(mz_rules_save(&rules, &score, "rules.json"));
    must(mz_rules_load("rules.json", &again));
    assert_int_equal(again.n, 2);
    assert_true(again.rules[0].threshold == rules.rules[0].threshold && again.n_cells == rules.n_cells);
    mz_advice advice;
    must(mz_rules_advise(&again, 512, 2, 50, &advice));
    assert_string_equal(advice.precision, "fp16"); // what --precision takes
    assert_non_null(strstr(advice.reason, "fp32 takes 1.10 x the time"));
    assert_true(advice.confidence == 1 && advice.pairs == 1);
    must(mz_rules_advise(&again, 256, 1, 800, &advice));
    assert_true(advice.candidate && advice.confidence == 0); // what was measured there disagrees, and that is said
    must(mz_rules_advise(&again, 2048, 1, 100, &advice));
    assert_non_null(strstr(advice.warning, "extrapolating"));
    mz_rules_free(&again);
    mz_rules_free(&rules);
}

TEST(test_cross_validation) { // repeats of a shape never stand on both sides
    enum { N = 40 };
    mz_pair pairs[N];
    // Each shape alone decides its width's rule: if a twin of the tested pair were learnt from, everything would be
    // right.
    for (int i = 0; i < N; i++)
        pairs[i] = pair(4, 100 * (i / 2 + 1), 64, i / 2 % 2 == 0 ? 2 : 0.5);
    mz_score score;
    must(mz_rules_cross_validate(pairs, N, 5, 1, &score));
    assert_int_equal(score.n, N);
    assert_true(score.accuracy < 0.5); // a neighbour's rule is always the wrong one
}

TEST(test_published) {
    static const struct {
        int64_t d_model, bs, seq;
        const char *precision;
    } asked[] = {{512, 4, 256, "fp16"}, {512, 2, 256, "fp32"},  {512, 2, 320, "fp16"},
                 {512, 1, 600, "fp16"}, {512, 1, 599, "fp32"},  {256, 4, 256, "fp16"},
                 {256, 1, 999, "fp32"}, {511, 1, 1000, "fp16"}, {511, 1, 640, "fp32"}};
    mz_rules rules;
    must(mz_rules_load("t4-glm4moe", &rules));
    for (size_t i = 0; i < MZ_COUNT(asked); i++) {
        mz_advice advice;
        must(mz_rules_advise(&rules, asked[i].d_model, asked[i].bs, asked[i].seq, &advice));
        assert_string_equal(advice.precision, asked[i].precision);
        assert_true(advice.reason[0] != '\0');
    }
}

static void rules_refused(const char *text, const char *words) {
    mz_rules rules;
    must(mz_file_write_atomic("bad.json", text, strlen(text)));
    must_fail(mz_rules_load("bad.json", &rules), MEZZO_ERR_FORMAT, words);
}

TEST(test_bad_rules) {
#define START                                                                                                          \
    "{\"format\": \"mezzo-rules\", \"version\": 1, \"name\": \"x\", \"baseline\": \"fp32\", \"candidate\": \"amp\", "  \
    "\"source\": \"y\", "
    rules_refused("{}", "'format'");
    rules_refused("[1]", "bad.json");
    rules_refused("{\"format\": \"other\"}", "mezzo analyze writes");
    rules_refused(START "\"rules\": []}", "'rules'");
    rules_refused(START "\"rules\": [{\"least_width\": 1, \"candidate\": \"sometimes\"}]}", "always, never");
    rules_refused(START "\"rules\": [{\"least_width\": 1, \"candidate\": \"from\", \"threshold_tokens\": -1}]}",
                  "threshold_tokens");
    rules_refused(
        START
        "\"rules\": [{\"least_width\": 5, \"candidate\": \"always\"}, {\"least_width\": 5, \"candidate\": \"never\"}]}",
        "must grow");
    rules_refused(START "\"rules\": [{\"least_width\": 1, \"candidate\": \"always\"}], "
                        "\"cells_width_tokens_pairs_wins\": [[1, 2, 3, 4]]}",
                  "element 0");
}

// Two shapes of five win at random: rules by width and tokens learn noise, cross-validate worse than "always", and are
// not offered.
TEST(test_constant) {
    mz_study s;
    mz_analysis a;
    mz_text t = {0};
    mz_text_addf(&t, "layers,d_model,bs,seqlen,speedup_amp_over_fp32\n");
    for (int i = 0; i < 40; i++)
        mz_text_addf(&t, "%d,%d,1,%d,%g\n", 1 + i / 10, 64 << (i % 2), 32 << (i % 10 / 2),
                     (uint32_t)i * 2654435761u >> 24 < 96 ? 1.1 : 0.9);
    loaded(t.data, &s);
    mz_text_free(&t);
    must(mz_analyze(&s, 200, 1, &a));
    assert_true(a.rules_lose && a.rule_cv.log_regret > a.always_baseline.log_regret);
    assert_int_equal(a.rules.n, 1);
    assert_int_equal(a.rules.rules[0].kind, MZ_RULE_NEVER);
    must(mz_analysis_text(&a, &t));
    assert_non_null(strstr(t.data, "Every width: always fp32. Rules by width and tokens are not offered"));
    mz_text_free(&t);
    mz_analysis_free(&a);
    mz_study_free(&s);
}

TEST(test_decide) {
    static const struct {
        mz_option options[3];
        int chosen;
        const char *words;
    } all[] = {
        {{{"fp32", 0.02, 100, true, true, ""},
          {"tf32", 0.015, 100, true, true, ""},
          {"bf16", 0.01, 70, true, true, ""}},
         2,
         "bf16: the fastest that passes the numeric check, 10 ms/step; fp32 takes 2.00 x the time and 1.43 x the "
         "memory, "
         "tf32 takes 1.50 x"},
        {{{"fp32", 0.01, 100, true, true, ""},
          {"bf16", 0.0099, 70, true, true, ""},
          {"fp16", 0.001, 70, true, false, "nan"}},
         0,
         "fp32: no narrower format is more than 2 % faster, 10 ms/step; bf16 takes 0.99 x the time and 0.70 x the "
         "memory, "
         "fp16 takes 0.10 x the time and 0.70 x the memory (nan)"},
        {{{"fp32", NAN, 100, true, true, ""},
          {"bf16", NAN, 70, false, false, "emulated"},
          {"fp16", NAN, NAN, false, false, ""}},
         0,
         "fp32: the only precision that this device runs natively, so nothing was timed; bf16 takes 0.70 x the memory "
         "(emulated)"},
        {{{"fp32", NAN, 100, true, false, "does not fit"},
          {"bf16", NAN, 90, true, false, "does not fit"},
          {"fp16", 1, 1, true, true, ""}},
         2,
         "fp16: the only one that can be used here, 1000 ms/step; fp32 takes 100.00 x the memory (does not fit)"},
    };
    for (size_t i = 0; i < MZ_COUNT(all); i++) {
        mz_decision d;
        mz_decide(all[i].options, 3, "ms/step", &d);
        assert_int_equal(d.chosen, all[i].chosen);
        if (strncmp(d.reason, all[i].words, strlen(all[i].words)) != 0)
            fail_msg("\"%s\" begins otherwise than \"%s\"", d.reason, all[i].words);
    }
}

TEST(test_built_in_rules) {
    mz_rules rules;
    mz_advice advice;
    static const char *const names[] = {"h200-gpt2", "h100-glm4_moe", "amx-glm4_moe"};
    for (size_t i = 0; i < MZ_COUNT(names); i++) {
        must(mz_rules_load(names[i], &rules));
        assert_string_equal(rules.name, names[i]);
        assert_non_null(strstr(mz_rules_names(), names[i]));
        must(mz_rules_advise(&rules, 256, 4, 512, &advice));
        assert_string_equal(advice.precision, "bf16");
        assert_non_null(strstr(advice.reason, "fp32 takes "));
        assert_true(advice.confidence > 0.9 && advice.warning[0] == '\0');
        mz_rules_free(&rules);
    }
    assert_string_equal(mz_rules_for("NVIDIA H100 80GB HBM3", false, "glm4_moe-4x128"), "h100-glm4_moe");
    assert_string_equal(mz_rules_for("NVIDIA H100 80GB HBM3", false, NULL), "h200-gpt2");
    assert_string_equal(mz_rules_for("NVIDIA H200", false, "gpt2"), "h200-gpt2");
    assert_string_equal(mz_rules_for("a CPU", true, "gpt2"), "amx-glm4_moe");
    assert_null(mz_rules_for("a CPU", false, "gpt2"));
}

// Somebody else's study: what is known of it must come out.
TEST(test_t4) {
    const char *source = getenv("MEZZO_SOURCE");
    static const char *const places[] = {"../shared/data", "../../shared/data"};
    mz_study s;
    mz_analysis a;
    char path[4096];
    for (size_t i = 0; i < MZ_COUNT(places); i++) {
        snprintf(path, sizeof path, "%s/%s/t4_full_data.csv", source != NULL ? source : ".", places[i]);
        if (mz_path_exists(path))
            break;
    }
    if (!mz_path_exists(path)) {
        print_message("t4_full_data.csv is not here: not tested\n");
        skip();
    }
    must(mz_study_load(path, NULL, NULL, NULL, &s));
    must(mz_analyze(&s, 2000, 1, &a));
    assert_int_equal(s.n_rows, 1440);
    assert_int_equal(s.n_pairs, 720);
    assert_int_equal(s.n_alone + s.n_unequal + s.n_failed + s.inconsistent, 0);
    assert_true(fabs(a.speedup.median - 2.067) < 5e-4);
    assert_int_equal(a.sign.wins, 590);
    assert_true(fabs(a.speedup.min - 0.615) < 5e-4 && fabs(a.speedup.max - 3.491) < 5e-4);
    assert_true(s.energy_remade);
    assert_int_equal(a.n_curves, 3);
    for (size_t i = 0; i < 3; i++) { // wider models cross earlier
        assert_int_equal(a.curves[i].n_crossings, 1);
        assert_true(a.curves[i].crossings[0].up);
        assert_true(i == 0 || a.curves[i].crossings[0].tokens < a.curves[i - 1].crossings[0].tokens);
    }
    assert_true(a.rule_cv.log_regret < a.always_candidate.log_regret);
    mz_analysis_free(&a);
    mz_study_free(&s);
}
