/* ==========================================================================
 * >>00.01 DENDRITE: tree-structured LLM inference in one C header
 * ==========================================================================
 *
 * WHAT   dendrite loads a language model (GGUF, safetensors) and explores many
 *        continuations of one context as cheaply as one. A sequence forks in
 *        constant time, because its KV cache is a copy-on-write paged table.
 *
 * USE    In exactly one C or C++ file:
 *
 *            #define DENDRITE_IMPLEMENTATION
 *            #include "dendrite.h"
 *
 *        or compile the two-line dendrite.c. Everywhere else include the
 *        header alone. Compile with optimisation (-O2), link with -lm -lpthread.
 *
 *        A whole program (examples/hello.c, error checks left out):
 *
 *            dend_model_desc md = {0};   md.path = "model.gguf";
 *            dend_model *model;          dend_model_load(&md, &model, NULL);
 *            dend_engine_desc ed = {0};  ed.model = model;
 *            dend_engine *engine;        dend_engine_create(&ed, &engine, NULL);
 *            dend_seq seq;               dend_seq_create(engine, &seq);
 *            dend_seq_append_text(engine, seq, "Once upon a time", 16, 0);
 *            int32_t token;
 *            while (dend_next(engine, seq, NULL, &token) == DEND_OK)
 *                fwrite(dend_token_bytes(model, token, NULL), ...);
 *
 *        Many branches of one thought, weighed against one another: dend_search
 *        (examples/solve24.c).
 *
 * PROMISES   The library never prints, aborts, exits, or keeps mutable
 *        globals. A failed call leaves everything as it was. A zeroed
 *        description means defaults. After dend_engine_create, decoding,
 *        forking, dropping and rewinding allocate nothing. A step ends near
 *        its time, wherever in a forward pass it is; the next one goes on.
 *
 * READ   The implementation below is a book. Its rooms stand in the order in
 *        which they depend on one another: each calls only rooms above it.
 *
 * LETTERS (used everywhere with these meanings)
 *        T tokens or rows    D model width       H query heads
 *        G KV heads          d head width        V vocabulary
 *        F FFN width         L layers            P tokens of a block
 *        N nodes             K reduction length of a matmul
 *
 * WORDS
 *        sequence   a growing list of tokens with its KV cache
 *        record     the state of a sequence; forks share it until they write
 *        tile       16 consecutive positions of one KV head
 *        block      P positions of all heads of all layers of a layer group
 *        block table the persistent array that maps positions to blocks
 *        row        one token of one sequence on its way through the model
 *        batch      the rows of one forward pass; it may be under way for several steps
 *        panel      16 output rows of a weight matrix, laid out for the kernels
 *        token tree draft tokens of one sequence, each with a parent
 *        prefix     a computed beginning of a text, kept for sequences that begin alike
 *        session    saved sequences, with what they share
 *        search     a tree of steps of text, grown by a method; a node is one step
 * ======================================================================== */
