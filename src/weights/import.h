// Holds the state of an import: where the weights are, and which model they make.
#ifndef MZ_TRAIN_IMPORT_H
#define MZ_TRAIN_IMPORT_H

#include "data/tokenizer.h"
#include "graph/graph.h"
#include "io/file.h"
#include "weights/gguf.h"
#include "weights/hf.h"

typedef struct mz_import {
    const char *where;          // as the user named it
    char *folder;               // the folder of the files
    const char *prefix;         // of this source's tensor names
    const mz_hf_family *family; // NULL: the source is llm.c's
    mz_gguf *gguf;              // a GGUF file, whose tensors are files[0]; NULL: the source is Hugging Face's
    const mz_gguf_family *gguf_family;
    mz_safetensors **files;
    char **file_names;
    size_t n_files, cap_files, cap_names;
    mz_map map;                 // llm.c's file
    mezzo_model_config model;   // the model's keys as they were read
    mz_model object;            // valid after mz_import_graph
    int64_t length;             // the context length that the caller asked for; 0: the folder's
    int64_t positions;          // the context length in config.json; model.seq_len may differ
    mezzo_graph *graph;         // has the names and shapes of the model's parameters
    mz_hf_list list;            // the parameters to write
    size_t used;                // how many of the source's tensors are in the list
    mz_safetensors *adapter;    // NULL: there is none
    const char *adapter_folder; // as the user named it
    json_t *adapter_config;
    int64_t lora_rank, adapters; // adapters: how many are in the list
    double lora_scale;           // alpha / rank
} mz_import;

// Builds the graph of in->model and allocates memory for its parameters in the list.
mezzo_status mz_import_graph(mz_import *in);
// mz_adapter_open reads the settings of PEFT's adapter in a folder, and opens its file (adapter.c); the next function
// adds its tensors after the parameters in the list. IO, FORMAT: a setting or a tensor that is not plain LoRA on a
// linear layer of this model.
mezzo_status mz_adapter_open(mz_import *in, const char *folder);
mezzo_status mz_adapter_list(mz_import *in);
// Opens llm.c's model file (llmc.c): *found says whether in->map is one; then it fills the model and the list.
mezzo_status mz_llmc_open(mz_import *in, bool *found);

#endif
