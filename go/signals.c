/* Python ignores SIGPIPE. The Go runtime, when it is loaded, puts a handler of its own there, for programs
 * that print; this library does not, so what was there before is given back. */
#if !defined(_WIN32)
#include <signal.h>
#include <stddef.h>

static struct sigaction before;

/* Runs before the runtime starts, whose own constructor has no priority. */
__attribute__((constructor(101))) static void remember_pipe(void) { sigaction(SIGPIPE, NULL, &before); }

void give_back_pipe(void) { sigaction(SIGPIPE, &before, NULL); }
#else
void give_back_pipe(void) {}
#endif
