// While an import is under way, this says where the weights are, and which model they make.
#ifndef MZ_TRAIN_IMPORT_H
#define MZ_TRAIN_IMPORT_H

#include "data/tokenizer.h"
#include "graph/graph.h"
#include "io/file.h"
#include "weights/gguf.h"
#include "weights/hf.h"

typedef struct mz_import {
    const char *where;          // as the user named it
    char *folder;               // that the files are in
    const char *prefix;         // of this source's tensor names
    const mz_hf_family *family; // NULL: llm.c's
    mz_gguf *gguf;              // a file of it, whose tensors are files[0]; NULL: Hugging Face's
    const mz_gguf_family *gguf_family;
    mz_safetensors **files;
    char **file_names;
    size_t n_files, cap_files, cap_names;
    mz_map map;                 // llm.c's file
    mezzo_model_config model;   // its keys, as they are read
    mz_model object;            // once mz_import_graph was called
    int64_t length;             // that was asked for; 0: the folder's
    int64_t positions;          // that config.json gives the model; model.seq_len may be another number
    mezzo_graph *graph;         // for the names and shapes of its parameters
    mz_hf_list list;            // the parameters, as they will be written
    size_t used;                // tensors that are in it
    mz_safetensors *adapter;    // NULL: none
    const char *adapter_folder; // as the user named it
    json_t *adapter_config;
    int64_t lora_rank, adapters; // adapters that are in the list
    double lora_scale;           // alpha / rank
} mz_import;

// Builds the graph of in->model and makes room for its parameters in the list.
mezzo_status mz_import_graph(mz_import *in);
// PEFT's adapter in a folder: its settings, and its file (adapter.c); then its tensors, after the parameters in the
// list. IO, FORMAT: a setting or a tensor that is not plain LoRA on a linear layer of this model.
mezzo_status mz_adapter_open(mz_import *in, const char *folder);
mezzo_status mz_adapter_list(mz_import *in);
// llm.c's model file (llmc.c): *found says whether in->map is one; then the model and the list are filled.
mezzo_status mz_llmc_open(mz_import *in, bool *found);

#endif
