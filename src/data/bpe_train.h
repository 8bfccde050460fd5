// Learns byte-pair encoding from words and their counts: the most frequent pair of neighbours becomes a token,
// repeatedly.
#ifndef MZ_DATA_BPE_TRAIN_H
#define MZ_DATA_BPE_TRAIN_H

#include "data/bpe.h"
#include "data/word_counts.h"

// Adds tokens to *bpe, which has those of the bytes and an index of sufficient size, until it has `vocab` or no pair is
// left; merges go to its list, not to its table of pairs. Of equally frequent pairs, the one whose left token, then
// whose right one has the lower number comes first: the merges are those of BpeTrainer in the `tokenizers` library with
// min_frequency 0. Where another token has a pair's bytes, the pair becomes that token. The function frees the words of
// *counts as it reads them. INTERRUPTED: *stop is set (stop may be NULL).
mezzo_status mz_bpe_train(mz_bpe *bpe, mz_word_counts *counts, int32_t vocab, const volatile sig_atomic_t *stop);

#endif
