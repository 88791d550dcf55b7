/* The implementation as one object file: compile this and link it with -lm -lpthread. */
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"
