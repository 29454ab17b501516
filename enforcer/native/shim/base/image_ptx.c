/* SPDX-License-Identifier: Apache-2.0
 *
 * PTX text: the variables of the module (.global, .const). Functions and what else is in braces or
 * parentheses is skipped. Where the text is not understood a variable counts nothing: the compiler
 * inside the driver refuses such a text.
 */
#include "base/image.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct token {
    const char *at;
    size_t length; /* 0: the end of the text */
};

struct reader {
    const char *at, *end;
    struct token token; /* that was read last */
};

/* ---- tokens: words, texts in quotes, and single signs ---- */

static const char *behind(const struct reader *r, const char *from, const char *what)
{
    size_t length = strlen(what);
    const char *found = memmem(from, (size_t)(r->end - from), what, length);
    return found ? found + length : r->end;
}

static bool in_word(char c)
{
    return c && !isspace((unsigned char)c) && !strchr("(){}[],;=\"/", c);
}

static void advance(struct reader *r)
{
    for (;;) {
        while (r->at < r->end && isspace((unsigned char)*r->at))
            r->at++;
        if (r->end - r->at < 2 || r->at[0] != '/' || (r->at[1] != '/' && r->at[1] != '*'))
            break;
        r->at = behind(r, r->at + 2, r->at[1] == '/' ? "\n" : "*/");
    }
    const char *from = r->at;
    if (from < r->end && *from == '"') {
        r->at = behind(r, from + 1, "\"");
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
    return r->token.length == strlen(word) && memcmp(r->token.at, word, r->token.length) == 0;
}

static bool ended(const struct reader *r)
{
    return !r->token.length;
}

/* What is no number is 0. */
static uint64_t number(const struct token *token)
{
    char copy[32];
    if (token->length >= sizeof(copy) || !token->length || !isdigit((unsigned char)token->at[0]))
        return 0;
    memcpy(copy, token->at, token->length);
    copy[token->length] = 0;
    return strtoull(copy, NULL, 0);
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
}

/* ---- variables ---- */

/* .u32, .f64, .b128, .f16x2: bytes of an element. */
static uint64_t width_of(const struct token *type)
{
    uint64_t bits = 0;
    size_t i = 2;
    if (type->length < 3 || type->at[0] != '.' || !strchr("bsuf", type->at[1]))
        return 0;
    while (i < type->length && isdigit((unsigned char)type->at[i]) && bits < 1000)
        bits = bits * 10 + (uint64_t)(type->at[i++] - '0');
    if (i < type->length)
        bits = type->length - i == 2 && type->at[i] == 'x' && type->at[i + 1] == '2' ? bits * 2 : 0;
    return bits / 8;
}

/* What stands before the name: bytes of an element. */
static uint64_t qualifiers(struct reader *r, bool *managed)
{
    uint64_t vector = 1, type = 0;
    while (!ended(r) && r->token.at[0] == '.') {
        if (is(r, ".align")) {
            advance(r); /* its number */
        } else if (is(r, ".attribute")) {
            while (!ended(r) && !is(r, ")") && !is(r, ";")) {
                *managed |= is(r, ".managed");
                advance(r);
            }
        } else if (is(r, ".v2") || is(r, ".v4") || is(r, ".v8")) {
            vector = (uint64_t)(r->token.at[2] - '0');
        } else if (width_of(&r->token)) {
            type = width_of(&r->token);
        }
        advance(r);
    }
    return type * vector;
}

/* Behind "=", which was read, up to the "," or ";" that ends it: how many elements are listed. */
static uint64_t elements(struct reader *r)
{
    uint64_t count = 1, depth = 0;
    for (advance(r); !ended(r) && !is(r, ";") && (depth || !is(r, ",")); advance(r)) {
        depth += is(r, "{") || is(r, "(");
        depth -= depth && (is(r, "}") || is(r, ")"));
        count += is(r, ",");
    }
    return count;
}

/* A name with its dimensions and contents: its bytes. */
static uint64_t declarator(struct reader *r, uint64_t element)
{
    uint64_t size = element;
    bool open = false;
    for (advance(r); is(r, "["); advance(r)) {
        advance(r);
        open |= is(r, "]");
        if (is(r, "]"))
            continue;
        if (__builtin_mul_overflow(size, number(&r->token), &size))
            size = UINT64_MAX;
        advance(r);
        if (!is(r, "]"))
            break;
    }
    if (!is(r, "="))
        return open ? 0 : size;
    uint64_t listed = elements(r);
    return open ? element * listed : size; /* there are no more of them than the text has signs */
}

/* ".global" or ".const", which was read, to its ";". */
static void variables(struct reader *r, bool external, struct qg_image *out)
{
    bool managed = false;
    advance(r);
    uint64_t element = qualifiers(r, &managed);
    for (;;) {
        uint64_t size = declarator(r, element);
        if (!external) {
            out->variables = qg_image_sum(out->variables, size);
            out->managed = managed ? qg_image_sum(out->managed, size) : out->managed;
        }
        if (!is(r, ","))
            return;
        advance(r);
    }
}

void qg_image_ptx(const char *text, size_t size, struct qg_image *out)
{
    struct reader reader = {.at = text, .end = text + size}, *r = &reader;
    bool external = false;
    for (advance(r); !ended(r); advance(r)) {
        if (is(r, ".extern")) {
            external = true;
            continue;
        }
        if (is(r, ".global") || is(r, ".const"))
            variables(r, external, out);
        else if (is(r, "{"))
            skip_block(r, "{", "}");
        else if (is(r, "("))
            skip_block(r, "(", ")");
        else if (!is(r, ";"))
            continue; /* in the middle of a statement, as .visible */
        external = false;
    }
}
