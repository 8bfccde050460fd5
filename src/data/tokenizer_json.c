// Reads tokenizer.json of the `tokenizers` library: the parts before and after its model. It refuses an unknown part by
// name. It ignores truncation and padding, which belong to a call, and post-processors, which frame a record: none
// changes the tokens of a text.
#include "data/tokenizer_json.h"
#include "io/json.h"
#include "io/quote.h"
#include "io/utf8.h"

// --- parts ---------------------------------------------------------------------------------------------------------
mezzo_status mz_json_refuse(const mz_json_part *p, const char *what) {
    return mz_fail(MEZZO_ERR_FORMAT, "%s: %s %s: %s", p->r->where, p->key, p->type, what);
}

mezzo_status mz_json_part_bool(const mz_json_part *p, const char *key, bool otherwise, bool *out) {
    const json_t *value = json_object_get(p->object, key);
    *out = value == NULL || json_is_null(value) ? otherwise : json_is_true(value);
    return value == NULL || json_is_null(value) || json_is_boolean(value)
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_FORMAT, "%s: %s %s: key '%s': expected true or false", p->r->where, p->key, p->type,
                         key);
}

static mezzo_status get_text(const mz_json_part *p, const json_t *value, const char *key, const char **out, size_t *n) {
    if (!json_is_string(value))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: %s %s: key '%s': expected a text", p->r->where, p->key, p->type, key);
    *out = json_string_value(value);
    *n = json_string_length(value);
    return MEZZO_OK;
}

// Gets a pattern from {"String": …} or {"Regex": …}.
static mezzo_status get_pattern(const mz_json_part *p, mz_pattern **out, const char **source, size_t *n, bool *regex) {
    const json_t *pattern = json_object_get(p->object, "pattern"), *text = json_object_get(pattern, "String");
    *regex = text == NULL;
    *out = NULL;
    if (json_is_string(pattern)) // old files have this form
        text = pattern;
    *regex = text == NULL;
    MEZZO_TRY(get_text(p, text != NULL ? text : json_object_get(pattern, "Regex"), "pattern", source, n));
    return mz_pattern_create(p->r->where, *regex ? MZ_PATTERN_ONIGURUMA : MZ_PATTERN_LITERAL, *source, *n, out);
}

typedef struct part_kind {
    const char *type, *keys; // keys: those that it may have, each between spaces
    mezzo_status (*read)(const mz_json_part *p);
} part_kind;

mezzo_status mz_json_part_keys(const mz_json_part *p, const char *keys) {
    const char *key;
    json_t *value;
    char padded[80];
    json_object_foreach((json_t *)(uintptr_t)p->object, key, value) {
        snprintf(padded, sizeof padded, " %s ", key);
        if (strcmp(key, "type") != 0 && strstr(keys, padded) == NULL)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: %s %s: key %s is not supported", p->r->where, p->key, p->type,
                           mz_quote(key).text);
    }
    return MEZZO_OK;
}

static mezzo_status read_part(mz_json_reader *r, const char *key, const char *list, const json_t *object,
                              const part_kind *kinds, size_t n) {
    mz_json_part p = {.r = r, .key = key, .type = "", .object = object};
    if (object == NULL || json_is_null(object))
        return MEZZO_OK;
    if (!json_is_object(object) || !json_is_string(json_object_get(object, "type")))
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s': expected an object with a type", r->where, key);
    p.type = json_string_value(json_object_get(object, "type"));
    if (strcmp(p.type, "Sequence") == 0) {
        const json_t *items = json_object_get(object, list), *item;
        size_t i;
        if (!json_is_array(items))
            return mz_fail(MEZZO_ERR_FORMAT, "%s: %s Sequence: key '%s': expected a list", r->where, key, list);
        json_array_foreach(items, i, item) MEZZO_TRY(read_part(r, key, list, item, kinds, n));
        return MEZZO_OK;
    }
    for (size_t i = 0; i < n; i++)
        if (strcmp(p.type, kinds[i].type) == 0) {
            p.type = kinds[i].type;
            MEZZO_TRY(mz_json_part_keys(&p, kinds[i].keys));
            return kinds[i].read(&p);
        }
    return mz_fail(MEZZO_ERR_FORMAT, "%s: %s %s is not supported", r->where, key, mz_quote(p.type).text);
}

// --- normalizers ---------------------------------------------------------------------------------------------------
static mezzo_status add_normal(const mz_json_part *p, mz_normal normal) {
    return mz_normals_add(p->r->where, &p->r->tok->normals, normal);
}

static mezzo_status read_form(const mz_json_part *p) {
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    for (int i = 0; i < 4; i++)
        if (strcmp(p->type, forms[i]) == 0)
            return add_normal(p, (mz_normal){.kind = (mz_normal_kind)i, .at_space = MZ_SPACE_KEEPS});
    return add_normal(p, (mz_normal){.kind = MZ_NORMAL_LOWERCASE, .at_space = MZ_SPACE_KEEPS});
}

static mezzo_status read_strip_accents(const mz_json_part *p) {
    mz_normal x = {.kind = MZ_NORMAL_REPLACE, .at_space = MZ_SPACE_KEEPS};
    MEZZO_TRY(mz_pattern_create(p->r->where, MZ_PATTERN_PCRE2, "\\p{M}", 5, &x.pattern));
    return add_normal(p, x);
}

mezzo_status mz_json_copy_text(const char *text, size_t n, char **out) {
    *out = mz_alloc(n + 1, 1);
    if (*out == NULL)
        return MEZZO_ERR_MEMORY;
    memcpy(*out, text, n);
    return MEZZO_OK;
}

// Patterns of spaces. Where a text is cut, only these and letters may occur. The first one applies to beginnings.
const char *const mz_json_extra_spaces[3] = {"\\A +", " {2,}", "[ \xE2\x96\x81]+\\z"};

static mezzo_status read_replacement(const mz_json_part *p, mz_normal *out) {
    const char *source, *text;
    size_t n;
    bool regex;
    *out = (mz_normal){.kind = MZ_NORMAL_REPLACE};
    MEZZO_TRY(get_pattern(p, &out->pattern, &source, &n, &regex));
    uint32_t code;
    if (!regex && mz_utf8_decode(source, n, &code) == n)
        out->at_space = MZ_SPACE_KEEPS;
    for (size_t i = 0; i < MZ_COUNT(mz_json_extra_spaces) && regex; i++)
        if (strlen(mz_json_extra_spaces[i]) == n && memcmp(mz_json_extra_spaces[i], source, n) == 0) {
            out->at_space = MZ_SPACE_KEEPS;
            out->left = i == 0;
        }
    mezzo_status status = get_text(p, json_object_get(p->object, "content"), "content", &text, &out->n);
    if (status == MEZZO_OK)
        status = mz_json_copy_text(text, out->n, &out->text);
    if (status != MEZZO_OK)
        mz_pattern_free(out->pattern);
    return status;
}

static mezzo_status read_replace(const mz_json_part *p) {
    mz_normal x;
    MEZZO_TRY(read_replacement(p, &x));
    return add_normal(p, x);
}

static mezzo_status read_prepend(const mz_json_part *p) {
    mz_normal x = {.kind = MZ_NORMAL_PREPEND, .at_space = MZ_SPACE_KEEPS};
    const char *text;
    MEZZO_TRY(get_text(p, json_object_get(p->object, "prepend"), "prepend", &text, &x.n));
    MEZZO_TRY(mz_json_copy_text(text, x.n, &x.text));
    return add_normal(p, x);
}

static mezzo_status read_strip(const mz_json_part *p) {
    mz_normal x = {.kind = MZ_NORMAL_STRIP};
    MEZZO_TRY(mz_json_part_bool(p, "strip_left", true, &x.left));
    MEZZO_TRY(mz_json_part_bool(p, "strip_right", true, &x.right));
    return add_normal(p, x);
}

static mezzo_status read_precompiled(const mz_json_part *p) {
    mz_normal x = {.kind = MZ_NORMAL_RULES};
    const char *text;
    size_t n;
    mz_text bytes = {0};
    MEZZO_TRY(get_text(p, json_object_get(p->object, "precompiled_charsmap"), "precompiled_charsmap", &text, &n));
    if (n == 0)
        return MEZZO_OK;
    mezzo_status status =
        mz_base64_read(text, n, &bytes) ? bytes.status : mz_json_refuse(p, "its precompiled_charsmap is no base64");
    if (status == MEZZO_OK)
        status = mz_charsmap_create(p->r->where, bytes.data, bytes.len, &x.map);
    mz_text_free(&bytes);
    MEZZO_TRY(status);
    x.at_space = mz_charsmap_keeps_spaces(x.map) ? MZ_SPACE_KEEPS : MZ_SPACE_UNKNOWN;
    return add_normal(p, x);
}

static const part_kind normalizers[] = {
    {"NFC", " ", read_form},
    {"NFD", " ", read_form},
    {"NFKC", " ", read_form},
    {"NFKD", " ", read_form},
    {"Lowercase", " ", read_form},
    {"StripAccents", " ", read_strip_accents},
    {"Replace", " pattern content ", read_replace},
    {"Prepend", " prepend ", read_prepend},
    {"Strip", " strip_left strip_right ", read_strip},
    {"Precompiled", " precompiled_charsmap ", read_precompiled},
};

// --- pre-tokenizers ------------------------------------------------------------------------------------------------
static mezzo_status add_step(const mz_json_part *p, mz_step step) {
    mz_json_reader *r = p->r;
    if (r->bytes && !r->tok->letters) { // what follows ByteLevel gets its letters
        r->tok->letters = true;
        mezzo_status status =
            mz_steps_add(r->where, &r->tok->steps, (mz_step){.kind = MZ_STEP_LETTERS, .at_space = MZ_SPACE_KEEPS});
        if (status != MEZZO_OK) {
            mz_pattern_free(step.pattern);
            return status;
        }
    }
    if (r->tok->letters) // a space is a letter there
        step.at_space = MZ_SPACE_UNKNOWN;
    return mz_steps_add(r->where, &r->tok->steps, step);
}

static mezzo_status add_split(const mz_json_part *p, const char *pattern, mz_behaviour behaviour, bool invert,
                              mz_at_space at_space) {
    mz_step step = {.kind = MZ_STEP_SPLIT, .behaviour = behaviour, .invert = invert, .at_space = at_space};
    MEZZO_TRY(mz_pattern_create(p->r->where, MZ_PATTERN_PCRE2, pattern, strlen(pattern), &step.pattern));
    return add_step(p, step);
}

static mezzo_status get_behaviour(const mz_json_part *p, const char *otherwise, mz_behaviour *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const json_t *value = json_object_get(p->object, "behavior");
    const char *name = value == NULL ? otherwise : json_string_value(value);
    for (size_t i = 0; i < MZ_COUNT(names); i++)
        if (name != NULL && strcmp(name, names[i]) == 0) {
            *out = (mz_behaviour)i;
            return MEZZO_OK;
        }
    return mz_json_refuse(
        p, "its behavior is not one of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

// Published patterns whose words never contain a space after a letter or digit, and whose lookahead stays within a
// word.
static const struct {
    const char *names[2]; // for a tokenizer that is trained here
    const char *source;
} known[] = {
    {{"gpt2"}, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {{"gpt4", "llama3"}, // cl100k_base
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+"},
    {{"qwen2"},
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+"},
    {{"gpt4o"}, // o200k_base
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'"
     "ll|'d)?|"
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'"
     "ll|'d)?|"
     "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

mezzo_status mz_json_pattern_named(const char *name, const char **out) {
    *out = NULL;
    for (size_t i = 0; i < MZ_COUNT(known); i++)
        for (size_t k = 0; k < 2 && known[i].names[k] != NULL; k++)
            if (name == NULL || strcmp(name, known[i].names[k]) == 0) {
                *out = i == 0 ? NULL : known[i].source;
                return MEZZO_OK;
            }
    return mz_fail(MEZZO_ERR_INVALID, "there is no pattern %s; it is gpt2, gpt4, llama3, qwen2 or gpt4o",
                   mz_quote(name).text);
}

static mezzo_status read_split(const mz_json_part *p) {
    mz_step step = {.kind = MZ_STEP_SPLIT};
    const char *source;
    size_t n;
    bool regex;
    MEZZO_TRY(get_behaviour(p, NULL, &step.behaviour));
    MEZZO_TRY(mz_json_part_bool(p, "invert", false, &step.invert));
    MEZZO_TRY(get_pattern(p, &step.pattern, &source, &n, &regex));
    const bool isolated = step.behaviour == MZ_ISOLATED && !step.invert;
    for (size_t i = 0; i < MZ_COUNT(known) && regex && isolated; i++)
        if (strlen(known[i].source) == n && memcmp(known[i].source, source, n) == 0) {
            step.at_space = MZ_SPACE_SPLITS;
            step.gpt2 = i == 0;
        }
    if (!regex && n == 1 && source[0] == ' ' && step.behaviour != MZ_MERGED_WITH_PREVIOUS)
        step.at_space = step.behaviour == MZ_CONTIGUOUS ? MZ_SPACE_UNKNOWN : MZ_SPACE_SPLITS;
    if (!step.gpt2 || p->r->bytes)
        return add_step(p, step);
    mz_pattern_free(step.pattern); // GPT-2's own is equal and faster
    return mz_steps_add_gpt2(p->r->where, &p->r->tok->steps);
}

static mezzo_status read_byte_level(const mz_json_part *p) {
    bool prefix, regex;
    if (p->r->bytes)
        return mz_json_refuse(p, "it is there twice");
    MEZZO_TRY(mz_json_part_bool(p, "add_prefix_space", true, &prefix));
    MEZZO_TRY(mz_json_part_bool(p, "use_regex", true, &regex));
    if (prefix)
        MEZZO_TRY(add_step(p, (mz_step){.kind = MZ_STEP_PREFIX, .at_space = MZ_SPACE_KEEPS}));
    if (regex)
        MEZZO_TRY(mz_steps_add_gpt2(p->r->where, &p->r->tok->steps));
    p->r->bytes = true;
    return MEZZO_OK;
}

static mezzo_status get_replacement(const mz_json_part *p, char out[5]) {
    const char *text;
    size_t n;
    uint32_t code;
    MEZZO_TRY(get_text(p, json_object_get(p->object, "replacement"), "replacement", &text, &n));
    if (n == 0 || mz_utf8_decode(text, n, &code) != n || code == 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: %s Metaspace: its replacement is not one character", p->r->where, p->key);
    memcpy(out, text, n);
    out[n] = '\0';
    return MEZZO_OK;
}

static mezzo_status get_prepend(const mz_json_part *p, mz_prepend *out) {
    static const char *const names[] = {"never", "first", "always"};
    const json_t *value = json_object_get(p->object, "prepend_scheme");
    const char *name = json_string_value(value);
    bool old;
    MEZZO_TRY(mz_json_part_bool(p, "add_prefix_space", true, &old));
    *out = old ? MZ_PREPEND_ALWAYS : MZ_PREPEND_NEVER;
    if (value == NULL)
        return MEZZO_OK;
    for (int i = 0; i < 3; i++)
        if (name != NULL && strcmp(name, names[i]) == 0) {
            *out = (mz_prepend)i;
            return MEZZO_OK;
        }
    return mz_json_refuse(p, "its prepend_scheme is not one of first, never, always");
}

static mezzo_status read_metaspace(const mz_json_part *p) {
    mz_step step = {.kind = MZ_STEP_SPACES, .at_space = MZ_SPACE_KEEPS};
    mz_step at = {.kind = MZ_STEP_SPLIT, .behaviour = MZ_MERGED_WITH_NEXT, .at_space = MZ_SPACE_SPLITS};
    bool split;
    if (p->r->bytes)
        return mz_json_refuse(p, "after ByteLevel");
    MEZZO_TRY(get_replacement(p, step.text));
    MEZZO_TRY(get_prepend(p, &step.prepend));
    MEZZO_TRY(mz_json_part_bool(p, "split", true, &split));
    MEZZO_TRY(add_step(p, step));
    if (!split)
        return MEZZO_OK;
    MEZZO_TRY(mz_pattern_create(p->r->where, MZ_PATTERN_LITERAL, step.text, strlen(step.text), &at.pattern));
    return add_step(p, at);
}

static mezzo_status read_digits(const mz_json_part *p) {
    bool individual;
    MEZZO_TRY(mz_json_part_bool(p, "individual_digits", false, &individual));
    return add_split(p, "\\p{N}", individual ? MZ_ISOLATED : MZ_CONTIGUOUS, false, MZ_SPACE_KEEPS);
}

static mezzo_status read_punctuation(const mz_json_part *p) {
    mz_behaviour behaviour;
    MEZZO_TRY(get_behaviour(p, "Isolated", &behaviour));
    return add_split(p, "[!-/:-@\\[-`{-~\\p{P}]", behaviour, false, MZ_SPACE_KEEPS);
}

static mezzo_status read_whitespace(const mz_json_part *p) {
    return add_split(p,
                     "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]+|"
                     "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}" MZ_WHITE "]+",
                     MZ_REMOVED, true, MZ_SPACE_SPLITS);
}

static mezzo_status read_whitespace_split(const mz_json_part *p) {
    return add_split(p, "[" MZ_WHITE "]", MZ_REMOVED, false, MZ_SPACE_SPLITS);
}

static const part_kind pre_tokenizers[] = {
    {"Split", " pattern behavior invert ", read_split},
    {"ByteLevel", " add_prefix_space trim_offsets use_regex ", read_byte_level},
    {"Metaspace", " replacement prepend_scheme add_prefix_space split str_rep ", read_metaspace},
    {"Digits", " individual_digits ", read_digits},
    {"Punctuation", " behavior ", read_punctuation},
    {"Whitespace", " ", read_whitespace},
    {"WhitespaceSplit", " ", read_whitespace_split},
};

// --- post-processors -----------------------------------------------------------------------------------------------
static mezzo_status pass_over(const mz_json_part *p) {
    (void)p;
    return MEZZO_OK;
}

static const part_kind post_processors[] = {
    {"TemplateProcessing", " single pair special_tokens ", pass_over},
    {"ByteLevel", " add_prefix_space trim_offsets use_regex ", pass_over},
    {"BertProcessing", " sep cls ", pass_over},
    {"RobertaProcessing", " sep cls trim_offsets add_prefix_space ", pass_over},
};

// --- decoders ------------------------------------------------------------------------------------------------------
static mezzo_status decode_bytes(const mz_json_part *p) {
    return p->r->bytes ? MEZZO_OK : mz_json_refuse(p, "without the pre-tokenizer ByteLevel");
}

static mezzo_status decode_replace(const mz_json_part *p) {
    mz_normal x;
    MEZZO_TRY(read_replacement(p, &x));
    const bool late = p->r->fused && x.at_space == MZ_SPACE_UNKNOWN;
    MEZZO_TRY(mz_normals_add(p->r->where, &p->r->decoders, x));
    return late ? mz_json_refuse(p, "of more than a character, after Fuse") : MEZZO_OK;
}

static mezzo_status decode_fallback(const mz_json_part *p) {
    p->r->byte_fallback = true;
    return p->r->fused ? mz_json_refuse(p, "after Fuse") : MEZZO_OK;
}

static mezzo_status decode_fuse(const mz_json_part *p) {
    p->r->fused = true;
    return MEZZO_OK;
}

static mezzo_status decode_strip(const mz_json_part *p) {
    int64_t start, stop;
    const char *content = json_string_value(json_object_get(p->object, "content"));
    MEZZO_TRY(mz_json_get_int(p->r->where, p->object, "start", 0, 1 << 20, &start));
    MEZZO_TRY(mz_json_get_int(p->r->where, p->object, "stop", 0, 1 << 20, &stop));
    if (!p->r->fused || stop != 0 || content == NULL || strcmp(content, " ") != 0)
        return mz_json_refuse(p, "other than of spaces before a text, after Fuse");
    p->r->tok->base.leading += (size_t)start;
    return MEZZO_OK;
}

static mezzo_status decode_metaspace(const mz_json_part *p) {
    mz_normal x = {.kind = MZ_NORMAL_REPLACE};
    mz_prepend prepend;
    char text[5];
    MEZZO_TRY(get_replacement(p, text));
    MEZZO_TRY(get_prepend(p, &prepend));
    p->r->tok->base.leading += prepend != MZ_PREPEND_NEVER;
    MEZZO_TRY(mz_pattern_create(p->r->where, MZ_PATTERN_LITERAL, text, strlen(text), &x.pattern));
    x.n = 1;
    mezzo_status status = mz_json_copy_text(" ", 1, &x.text);
    if (status != MEZZO_OK) {
        mz_pattern_free(x.pattern);
        return status;
    }
    return mz_normals_add(p->r->where, &p->r->decoders, x);
}

static const part_kind decoders[] = {
    {"ByteLevel", " add_prefix_space trim_offsets use_regex ", decode_bytes},
    {"Replace", " pattern content ", decode_replace},
    {"ByteFallback", " ", decode_fallback},
    {"Fuse", " ", decode_fuse},
    {"Strip", " content start stop ", decode_strip},
    {"Metaspace", " replacement prepend_scheme add_prefix_space split str_rep ", decode_metaspace},
};

// Returns the byte of <0xNN>, or -1.
static int fallback_byte(const char *text, size_t n) {
    unsigned byte;
    char six[7] = "";
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    memcpy(six, text, 6);
    return sscanf(six + 3, "%2x>", &byte) == 1 ? (int)byte : -1;
}

mezzo_status mz_json_show_tokens(mz_json_reader *r) {
    mz_bpe_tokenizer *tok = r->tok;
    mz_normal_room room = {0};
    mz_text shown = {0};
    mezzo_status status = MEZZO_OK;
    MEZZO_TRY(MZ_NEW(tok->shown_ends, (size_t)tok->bpe.vocab + 1));
    tok->base.max_bytes = 0;
    for (int32_t t = 0; t < tok->bpe.vocab && status == MEZZO_OK; t++) {
        const size_t begun = shown.len;
        size_t n;
        const char *text = mz_bpe_bytes(&tok->bpe, t, &n);
        status = mz_normalize(&r->decoders, &room, text, n, MZ_PLACE_BEGINS, &text, &n);
        const int byte = r->byte_fallback && status == MEZZO_OK ? fallback_byte(text, n) : -1;
        const char one = (char)byte;
        if (status == MEZZO_OK)
            mz_text_add(&shown, byte >= 0 ? &one : text, byte >= 0 ? 1 : n);
        tok->shown_ends[t] = shown.len;
        if (shown.len - begun > tok->base.max_bytes)
            tok->base.max_bytes = shown.len - begun;
    }
    if (status == MEZZO_OK)
        status = shown.status;
    mz_normal_room_free(&room);
    if (status == MEZZO_OK && shown.data == NULL)
        status = mz_json_copy_text("", 0, &shown.data);
    if (status == MEZZO_OK)
        tok->shown = shown.data;
    else
        mz_text_free(&shown);
    return status;
}

mezzo_status mz_json_read_parts(mz_json_reader *r, const json_t *object) {
    MEZZO_TRY(read_part(r, "normalizer", "normalizers", json_object_get(object, "normalizer"), normalizers,
                        MZ_COUNT(normalizers)));
    MEZZO_TRY(read_part(r, "pre_tokenizer", "pretokenizers", json_object_get(object, "pre_tokenizer"), pre_tokenizers,
                        MZ_COUNT(pre_tokenizers)));
    MEZZO_TRY(read_part(r, "post_processor", "processors", json_object_get(object, "post_processor"), post_processors,
                        MZ_COUNT(post_processors)));
    MEZZO_TRY(read_part(r, "decoder", "decoders", json_object_get(object, "decoder"), decoders, MZ_COUNT(decoders)));
    return MEZZO_OK;
}
