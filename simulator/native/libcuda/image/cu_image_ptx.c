/* SPDX-License-Identifier: Apache-2.0
 *
 * PTX text: names of entries with their parameters, launch bounds and static shared memory, and the
 * variables of the module. Instructions are skipped.
 */
#include "cu_image.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct token {
    const char *at;
    size_t len; /* 0: the end of the text */
};

struct reader {
    const char *at, *end;
    struct token token; /* the one that was read last */
    struct cu_image *image;
    bool failed, version;
};

/* ---- tokens: words, texts in quotes, and single signs ---- */

static void skip_comment(struct reader *r)
{
    if (r->at[1] == '/') {
        const char *end = memchr(r->at, '\n', (size_t)(r->end - r->at));
        r->at = end ? end : r->end;
        return;
    }
    const char *end = memmem(r->at + 2, (size_t)(r->end - r->at - 2), "*/", 2);
    r->at = end ? end + 2 : r->end;
}

static bool begins_comment(const struct reader *r)
{
    return r->end - r->at >= 2 && r->at[0] == '/' && (r->at[1] == '/' || r->at[1] == '*');
}

static bool in_word(char c)
{
    return !isspace((unsigned char)c) && !strchr("(){}[],;=\"/", c);
}

static void advance(struct reader *r)
{
    for (;;) {
        while (r->at < r->end && isspace((unsigned char)*r->at))
            r->at++;
        if (!begins_comment(r))
            break;
        skip_comment(r);
    }
    const char *from = r->at;
    if (from < r->end && *from == '"') {
        const char *end = memchr(from + 1, '"', (size_t)(r->end - from - 1));
        r->at = end ? end + 1 : r->end;
    } else {
        while (r->at < r->end && in_word(*r->at))
            r->at++;
        if (r->at == from && r->at < r->end)
            r->at++;
    }
    r->token = (struct token){from, (size_t)(r->at - from)};
}

static bool is(const struct reader *r, const char *word)
{
    return r->token.len == strlen(word) && memcmp(r->token.at, word, r->token.len) == 0;
}

static bool ended(const struct reader *r)
{
    return !r->token.len;
}

/* A number that is not negative, and the most that there can be for what is none. */
static uint64_t number(const struct token *token)
{
    char copy[32] = "", *end;
    if (!token->len || token->len >= sizeof copy || !isdigit((unsigned char)token->at[0]))
        return UINT64_MAX;
    memcpy(copy, token->at, token->len);
    uint64_t value = strtoull(copy, &end, 0);
    return *end && strcmp(end, "U") != 0 ? UINT64_MAX : value;
}

/* From an opening sign, which was read, to the closing one. */
static void skip_block(struct reader *r, const char *open, const char *close)
{
    uint64_t depth = 1;
    while (depth && !ended(r)) {
        advance(r);
        depth += is(r, open);
        depth -= is(r, close);
    }
    r->failed |= depth > 0;
}

/* ---- variables and parameters ---- */

struct variable {
    struct token name;
    uint64_t size, align;
    unsigned width; /* of an element */
    bool open;      /* its size is that of its contents */
    bool managed;
};

static unsigned width_of(const struct token *type)
{
    unsigned value = 0;
    size_t i = 2;
    if (type->len < 3 || type->at[0] != '.' || !strchr("bsuf", type->at[1]))
        return 0;
    while (i < type->len && isdigit((unsigned char)type->at[i]) && value < 1000)
        value = value * 10 + (unsigned)(type->at[i++] - '0');
    if (i + 2 == type->len && type->at[i] == 'x' && type->at[i + 1] == '2')
        return value / 4; /* .f16x2 */
    return i == type->len && value % 8 == 0 && value <= 128 ? value / 8 : 0;
}

/* What stands before the name. */
static void qualifiers(struct reader *r, struct variable *v)
{
    unsigned vector = 1, type = 0;
    bool target = false; /* what is said of that to which a parameter points */
    while (!ended(r) && r->token.at[0] == '.') {
        target |= is(r, ".ptr");
        if (is(r, ".align")) {
            advance(r);
            v->align = target ? v->align : number(&r->token);
        } else if (is(r, ".attribute")) {
            advance(r);
            while (!ended(r) && !is(r, ")")) {
                v->managed |= is(r, ".managed");
                advance(r);
            }
        } else if (is(r, ".v2") || is(r, ".v4") || is(r, ".v8")) {
            vector = (unsigned)(r->token.at[2] - '0');
        } else if (width_of(&r->token)) {
            type = width_of(&r->token);
        }
        advance(r);
    }
    v->width = type * vector;
    v->align = v->align && v->align <= 65536 ? v->align : v->width;
}

/* Name and dimensions; the token behind them is read. */
static void declarator(struct reader *r, struct variable *v)
{
    v->name = r->token;
    v->size = v->width;
    v->open = false;
    r->failed |= ended(r) || strchr("(){}[],;=\"/", *r->token.at);
    advance(r);
    while (is(r, "[")) {
        advance(r);
        if (is(r, "]")) {
            v->open = true;
        } else {
            uint64_t count = number(&r->token);
            advance(r);
            if (!is(r, "]") || count > CU_IMAGE_GLOBAL ||
                __builtin_mul_overflow(v->size, count, &v->size) || v->size > CU_IMAGE_GLOBAL)
                r->failed = true;
        }
        if (r->failed)
            return;
        advance(r);
    }
}

static uint64_t aligned(uint64_t offset, uint64_t align)
{
    return align ? (offset + align - 1) / align * align : offset;
}

/* Of an element of a list of contents; what is no number (an address) is 0. */
static uint64_t constant(const struct token *token)
{
    char copy[32] = "", *end;
    if (token->len >= sizeof copy)
        return 0;
    memcpy(copy, token->at, token->len);
    if (copy[0] == '0' && strchr("fFdD", copy[1]) && copy[1])
        return strtoull(copy + 2, NULL, 16); /* the bits of a number */
    if (strchr(copy, '.'))
        return 0;
    uint64_t value = strtoull(copy, &end, 0);
    return *end && strcmp(end, "U") != 0 ? 0 : value;
}

/* Behind "=", which was read; ends at the "," or ";" behind. Puts elements at to, if there is room
 * for; the number of elements. */
static uint64_t elements(struct reader *r, uint8_t *to, uint64_t size, unsigned width)
{
    uint64_t count = 0, depth = 0, at = 0;
    bool filled = false;
    for (advance(r); !ended(r) && !is(r, ";") && (depth || !is(r, ",")); advance(r)) {
        bool open = is(r, "{") || is(r, "("), close = is(r, "}") || is(r, ")");
        depth += open;
        depth -= close && depth;
        if (is(r, ",")) {
            filled = false;
        } else if (!open && !close && !filled) {
            uint64_t value = constant(&r->token);
            if (to && width && width <= 8 && at + width <= size)
                memcpy(to + at, &value, width);
            at += width;
            count++;
            filled = true;
        }
    }
    r->failed |= ended(r);
    return count;
}

static void initialiser(struct reader *r, const struct variable *v, struct cu_image_global *global)
{
    struct reader before = *r;
    unsigned element = v->width;
    if (v->open) {
        uint64_t size = elements(r, NULL, 0, 0) * element;
        global->size = global->size && size < global->size ? global->size : size;
        *r = before;
    }
    elements(r, cu_image_contents(r->image, global), global->size, element);
}

/* ".global" or ".const", which was read, to its ";". */
static void variable(struct reader *r, enum cu_image_space space, bool external)
{
    struct variable v = {.size = 0};
    advance(r);
    qualifiers(r, &v);
    for (;;) {
        struct cu_image_global scratch = {.size = 0}, *global = &scratch;
        declarator(r, &v);
        if (r->failed)
            return;
        if (v.width && !external) {
            global = cu_image_add_global(r->image, v.name.at, v.name.len);
            if (!global) {
                r->failed = true;
                return;
            }
            global->size = v.open && v.size == v.width ? 0 : v.size;
            global->space = v.managed ? CU_IMAGE_MANAGED : space;
        }
        if (is(r, "="))
            initialiser(r, &v, global);
        if (!is(r, ","))
            break;
        advance(r);
    }
    r->failed |= !is(r, ";");
}

static void shared(struct reader *r, struct cu_image_kernel *kernel)
{
    struct variable v = {.size = 0};
    advance(r);
    qualifiers(r, &v);
    declarator(r, &v);
    uint64_t end = aligned(kernel->shared, v.align) + v.size;
    if (!r->failed && !v.open)
        kernel->shared = end <= UINT32_MAX ? (uint32_t)end : UINT32_MAX;
    while (!r->failed && !ended(r) && !is(r, ";"))
        advance(r);
}

/* ---- kernels ---- */

static void add_param(struct reader *r, struct cu_image_kernel *kernel, const struct variable *v)
{
    uint64_t offset = aligned(kernel->param_bytes, v->align);
    uint32_t n = kernel->nparams;
    if (offset + v->size > CU_IMAGE_PARAMS || n >= CU_IMAGE_PARAMS) {
        r->failed = true;
        return;
    }
    if ((n & (n - 1)) == 0) {
        void *grown = realloc(kernel->params, (n ? n * 2 : 1) * sizeof *kernel->params);
        if (!grown) {
            r->failed = true;
            return;
        }
        kernel->params = grown;
    }
    kernel->params[kernel->nparams++] =
        (struct cu_image_param){(uint32_t)offset, (uint32_t)v->size};
    kernel->param_bytes = (uint32_t)(offset + v->size);
}

/* Behind "(", which was read, to its ")". */
static void params(struct reader *r, struct cu_image_kernel *kernel)
{
    advance(r);
    while (!r->failed && is(r, ".param")) {
        struct variable v = {.size = 0};
        advance(r);
        qualifiers(r, &v);
        declarator(r, &v);
        if (r->failed)
            return;
        add_param(r, kernel, &v);
        if (is(r, ","))
            advance(r);
    }
    r->failed |= !is(r, ")");
}

static void bounds(struct reader *r, struct cu_image_kernel *kernel)
{
    uint64_t all = 1;
    do {
        advance(r);
        uint64_t one = number(&r->token);
        all *= one && one <= 1024 && all <= 1024 ? one : 2048;
        advance(r);
    } while (is(r, ","));
    kernel->max_threads = all <= 1024 ? (uint32_t)all : 0;
}

static void body(struct reader *r, struct cu_image_kernel *kernel)
{
    uint64_t depth = 1;
    while (depth && !ended(r) && !r->failed) {
        advance(r);
        depth += is(r, "{");
        depth -= is(r, "}");
        if (is(r, ".shared"))
            shared(r, kernel);
    }
    r->failed |= depth > 0;
}

/* ".entry", which was read, to the end of its body. */
static void entry(struct reader *r)
{
    struct cu_image *image = r->image;
    advance(r);
    struct cu_image_kernel *kernel = cu_image_add_kernel(image, r->token.at, r->token.len);
    if (!kernel || strchr("(){}[],;=\"/", *r->token.at)) {
        r->failed = true;
        return;
    }
    advance(r);
    if (is(r, "("))
        params(r, kernel);
    while (!r->failed && !ended(r) && !is(r, "{") && !is(r, ";"))
        if (is(r, ".maxntid") || is(r, ".reqntid"))
            bounds(r, kernel);
        else
            advance(r);
    if (is(r, "{"))
        body(r, kernel);
    else if (is(r, ";")) { /* declared only */
        free(kernel->params);
        free(kernel->name);
        image->nkernels--;
    } else
        r->failed = true;
}

/* ---- the module ---- */

static void target(struct reader *r)
{
    struct token digits = {NULL, 0};
    advance(r);
    if (r->token.len > 3 && memcmp(r->token.at, "sm_", 3) == 0)
        digits = (struct token){r->token.at + 3, r->token.len - 3};
    while (digits.len && !isdigit((unsigned char)digits.at[digits.len - 1]))
        digits.len--; /* sm_90a */
    uint64_t arch = number(&digits);
    if (arch > r->image->arch && arch < 1000)
        r->image->arch = (uint32_t)arch;
}

static void pragma(struct reader *r)
{
    advance(r);
    if (is(r, "\"" CU_IMAGE_ANY "\""))
        r->image->any = true;
}

/* What begins with the token that was read. */
static void statement(struct reader *r, bool *external)
{
    if (is(r, ".extern")) {
        *external = true;
        return;
    }
    if (is(r, ".version"))
        r->version = true;
    else if (is(r, ".target"))
        target(r);
    else if (is(r, ".pragma"))
        pragma(r);
    else if (is(r, ".entry"))
        entry(r);
    else if (is(r, ".global"))
        variable(r, CU_IMAGE_DEVICE, *external);
    else if (is(r, ".const"))
        variable(r, CU_IMAGE_CONSTANT, *external);
    else if (is(r, "{"))
        skip_block(r, "{", "}");
    else if (is(r, "("))
        skip_block(r, "(", ")");
    else if (!is(r, ";"))
        return; /* in the middle of one, as .visible */
    *external = false;
}

CUresult cu_image_ptx(const char *text, size_t size, struct cu_image *image)
{
    struct reader reader = {.at = text, .end = text + size, .image = image};
    bool external = false;
    for (advance(&reader); !ended(&reader) && !reader.failed; advance(&reader))
        statement(&reader, &external);
    return reader.failed || !reader.version ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}
