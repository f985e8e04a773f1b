// Prints llama.cpp's log lines about the compute buffers that it plans for a model on emulated cards:
//
//   buffers MODEL CARDS CONTEXT UBATCH KV_TYPE DRAFT SLOTS N_CPU_MOE
//
// Creates the context of the target model, then, if DRAFT is above 0, that of its MTP head. No weights are read.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

static void print_buffer_lines(ggml_log_level level, const char *text, void *) {
    if (strstr(text, "compute buffer size") || level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stdout);
        fflush(stdout);
    }
}

int main(int count, char **arguments) {
    if (count != 9) {
        fprintf(stderr, "buffers MODEL CARDS CONTEXT UBATCH KV_TYPE DRAFT SLOTS N_CPU_MOE\n");
        return 2;
    }
    const std::string kv = arguments[5];
    const std::map<std::string, ggml_type> types{
        {"f32", GGML_TYPE_F32},   {"f16", GGML_TYPE_F16},   {"bf16", GGML_TYPE_BF16}, {"q8_0", GGML_TYPE_Q8_0},
        {"q5_1", GGML_TYPE_Q5_1}, {"q5_0", GGML_TYPE_Q5_0}, {"q4_1", GGML_TYPE_Q4_1}, {"q4_0", GGML_TYPE_Q4_0}};
    if (!types.count(kv)) {
        fprintf(stderr, "KV cache type %s is not known\n", kv.c_str());
        return 2;
    }
    const ggml_type type = types.at(kv);
    const int context = atoi(arguments[3]), ubatch = atoi(arguments[4]);
    const int draft = atoi(arguments[6]), slots = atoi(arguments[7]), on_host = atoi(arguments[8]);

    setenv("FAKE_CUDA_CARDS", arguments[2], 1);
    void *library = dlopen(BACKEND, RTLD_LAZY | RTLD_GLOBAL);
    void *symbol = library ? dlsym(library, "ggml_backend_cuda_reg") : nullptr;
    if (!symbol) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    llama_log_set(print_buffer_lines, nullptr);
    llama_backend_init();
    ggml_backend_register(reinterpret_cast<ggml_backend_reg_t (*)()>(symbol)());

    llama_model_params model_params = llama_model_default_params();
    model_params.no_alloc = true;
    model_params.load_mode = LLAMA_LOAD_MODE_NONE;
    model_params.load_mtp = draft > 0;
    model_params.n_gpu_layers = 99;
    std::deque<std::string> patterns;
    std::vector<llama_model_tensor_buft_override> overrides;
    for (int layer = 0; layer < on_host; layer++) {
        patterns.push_back("blk\\." + std::to_string(layer) + "\\.ffn_(up|down|gate|gate_up)_(ch|)exps");
        overrides.push_back({patterns.back().c_str(), ggml_backend_cpu_buffer_type()});
    }
    overrides.push_back({nullptr, nullptr});
    model_params.tensor_buft_overrides = on_host ? overrides.data() : nullptr;
    llama_model *model = llama_model_load_from_file(arguments[1], model_params);
    if (!model) {
        return 1;
    }

    llama_context_params params = llama_context_default_params();
    params.n_ctx = context;
    params.n_ubatch = ubatch;
    params.n_batch = ubatch > 2048 ? ubatch : 2048;
    params.n_seq_max = slots;
    params.swa_full = false;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    llama_context_params target_params = params;
    target_params.type_k = target_params.type_v = type;
    target_params.n_rs_seq = draft;
    target_params.n_outputs_max = slots * (1 + draft);
    target_params.n_outputs_max_per_seq = 1 + draft;
    llama_context *target = llama_init_from_model(model, target_params);
    if (target && draft) {
        params.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
        params.ctx_other = target;
        params.n_outputs_max = slots;
        params.n_outputs_max_per_seq = 1;
        target = llama_init_from_model(model, params);
    }
    fflush(stdout);
    _Exit(target ? 0 : 1);
}
