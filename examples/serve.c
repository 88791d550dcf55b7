/* Several characters of a game think at once, at different priorities, within
 * a time budget a frame. The player's companion comes last and goes first.
 *
 *     build/serve [model.gguf] [milliseconds a frame]
 */
#include <stdio.h>
#include <string.h>
#include <stdlib.h>

#include "dendrite.h"

enum { N_AGENTS = 4, LATE_FRAME = 20 };

typedef struct agent {
    const char *name, *line;
    int32_t priority;
    const dend_model *model;
    dend_request_id id;
    char text[4096];
    size_t n_bytes;
} agent;

static bool on_token(void *user_data, dend_request_id id, int32_t token) {
    agent *a = (agent *)user_data;
    size_t n = 0;
    const char *bytes = dend_token_bytes(a->model, token, &n);
    (void)id;
    for (size_t i = 0; i < n && a->n_bytes + 1 < sizeof a->text; i++) {
        a->text[a->n_bytes++] = (char)((unsigned char)bytes[i] < 32 ? ' ' : bytes[i]);
    }
    return a->n_bytes + 1 < sizeof a->text; /* false would end the request */
}

static dend_status submit(dend_engine *engine, dend_scheduler *scheduler, agent *a) {
    char prompt[512];
    dend_request request;
    dend_status status;
    memset(&request, 0, sizeof request);
    status = dend_seq_create(engine, &request.seq);
    snprintf(prompt, sizeof prompt, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n", a->line);
    if (status == DEND_OK) status = dend_seq_append_text(engine, request.seq, prompt, (size_t)-1, 0);
    request.params.temperature = 0.7f;
    request.max_tokens = 60;
    request.priority = a->priority;
    request.on_token = on_token;
    request.user_data = a;
    return status == DEND_OK ? dend_scheduler_submit(scheduler, &request, &a->id) : status;
}

int main(int argc, char **argv) {
    static agent agents[N_AGENTS] = {
        {"guard",
         "You guard a castle gate at night and hear a noise. What do you do?",
         0,
         NULL,
         {0, 0},
         "",
         0},
        {"baker", "You bake bread in a small village. Describe your morning.", 0, NULL, {0, 0}, "", 0},
        {"raven", "You are an old raven on a tower. What have you seen today?", -5, NULL, {0, 0}, "", 0},
        {"companion", "Your friend asks: which way to the river? Answer briefly.", 10, NULL, {0, 0}, "", 0}};
    dend_model_desc model_desc = {0};
    dend_engine_desc engine_desc = {0};
    dend_scheduler_desc scheduler_desc = {0};
    dend_model *model = NULL;
    dend_engine *engine = NULL;
    dend_scheduler *scheduler = NULL;
    unsigned frame_ms = argc > 2 ? (unsigned)atoi(argv[2]) : 33, frame;
    model_desc.path = argc > 1 ? argv[1] : "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    dend_status status = dend_model_load(&model_desc, &model, NULL);
    engine_desc.model = model;
    if (status == DEND_OK) status = dend_engine_create(&engine_desc, &engine, NULL);
    scheduler_desc.engine = engine;
    if (status == DEND_OK) status = dend_scheduler_create(&scheduler_desc, &scheduler, NULL);
    for (int i = 0; i < N_AGENTS; i++) agents[i].model = model;
    for (int i = 0; i < N_AGENTS - 1 && status == DEND_OK; i++) {
        status = submit(engine, scheduler, &agents[i]);
    }
    for (frame = 0; status == DEND_OK || status == DEND_PENDING; frame++) { /* the game's loop */
        if (frame == LATE_FRAME && (status = submit(engine, scheduler, &agents[N_AGENTS - 1])) < 0) break;
        status = dend_scheduler_step(scheduler, frame_ms * 1000u);
        if (status == DEND_OK && frame >= LATE_FRAME) break;
    }
    for (int i = 0; i < N_AGENTS && status == DEND_OK; i++) {
        dend_request_info info;
        if (dend_scheduler_request_info(scheduler, agents[i].id, &info) != DEND_OK) continue;
        printf("%-9s  priority %3d  first token %4u ms  %3u tokens, %5.1f a second  %s\n    %s\n",
               agents[i].name, (int)agents[i].priority, (unsigned)(info.first_token_us / 1000),
               (unsigned)info.n_generated, (double)info.tokens_per_s, dend_status_name(info.status),
               agents[i].text);
    }
    printf("%u frames of %u ms: %s\n", frame + 1, frame_ms, dend_status_text(status));
    dend_scheduler_free(scheduler);
    dend_engine_free(engine);
    dend_model_free(model);
    return status != DEND_OK;
}
