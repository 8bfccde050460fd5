"""llama.cpp on a GGUF file, through xllamacpp (its wheel has the library): greedy text and answers, keys and values in FP32, one thread."""


class LlamaCpp:
    def __init__(self, path):
        import xllamacpp

        p = xllamacpp.CommonParams()
        p.model.path = path
        p.n_ctx, p.n_parallel, p.warmup, p.verbosity = 256, 1, False, 0
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
        p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        self.server = xllamacpp.Server(p)

    def options(self, tokens):
        return {"temperature": 0.0, "top_k": 1, "repeat_penalty": 1.0, "seed": 1, "max_tokens": tokens}

    def text(self, prompt, tokens):
        return self.server.handle_completions({"prompt": prompt, **self.options(tokens)})["choices"][0]["text"]

    def answer(self, question, tokens):
        messages = [{"role": "user", "content": question}]
        return self.server.handle_chat_completions({"messages": messages, **self.options(tokens)})["choices"][0]["message"]["content"]
