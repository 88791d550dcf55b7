/* All tests in one program: the generated header with its implementation, then
 * every test file, so that tests see private functions too.
 *
 *     build/test-gcc [PATTERN]      runs the tests whose names match (cmocka wildcards)
 */
#define DENDRITE_IMPLEMENTATION
#include "dendrite.h"

#include "dend_test.h"

