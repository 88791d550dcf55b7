/* Loads a model, continues a prompt, and prints the text as it comes.
 *
 *     build/hello [model.gguf] ["Once upon a time"]
 */
#include <stdio.h>

#include "dendrite.h"

int main(int argc, char **argv) {
    dend_model_desc model_desc = {0};
    dend_engine_desc engine_desc = {0};
    dend_model *model = NULL;
    dend_engine *engine = NULL;
    dend_seq seq = {0, 0};
    int32_t token = 0;
    model_desc.path = argc > 1 ? argv[1] : "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    dend_status status = dend_model_load(&model_desc, &model, NULL);
    engine_desc.model = model;
    if (status == DEND_OK) status = dend_engine_create(&engine_desc, &engine, NULL);
    if (status == DEND_OK) status = dend_seq_create(engine, &seq);
    if (status == DEND_OK)
        status = dend_seq_append_text(engine, seq, argc > 2 ? argv[2] : "Once upon a time", (size_t)-1, 0);
    for (int i = 0; i < 64 && status == DEND_OK; i++) {
        status = dend_next(engine, seq, NULL, &token);
        if (status == DEND_OK) fputs(dend_token_bytes(model, token, NULL), stdout);
        fflush(stdout);
    }
    puts(status < 0 ? dend_status_text(status) : "");
    dend_engine_free(engine);
    dend_model_free(model);
    return status < 0;
}
