/* Memory for vectors. */
#ifndef SPO_LINES_H
#define SPO_LINES_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Memory that begins a cache line, as vectors of every instruction set like it; what malloc gave stands
 * before it. */
static inline void *lines(int64_t bytes) {
    char *const given = malloc((size_t)bytes + 64 + sizeof(void *));
    if (!given) return NULL;
    char *const line = (char *)(((uintptr_t)given + 63 + sizeof(void *)) & ~(uintptr_t)63);
    memcpy(line - sizeof(void *), &given, sizeof(void *));
    return line;
}

static inline void free_lines(void *line) {
    void *given;
    if (!line) return;
    memcpy(&given, (char *)line - sizeof(void *), sizeof(void *));
    free(given);
}

#endif
