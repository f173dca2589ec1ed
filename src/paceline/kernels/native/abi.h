// What crosses the C boundary. Mirrored field by field in kernels/abi.py.
#pragma once

#include <cstdint>

extern "C" {

// Packed weights: panels [ceil(n/32)][ceil(k/32)*16][32][2] bf16; bias float32 [n] or null. With
// scales, float32 [ceil(n/32)*32]: panels [ceil(n/32)][ceil(k/64)*16][32][4] int8, plus 128 each.
struct PlMatrix {
    const uint32_t* panels;
    const float* bias;
    const float* scales;
    int64_t n, k;
};

// DFlash 2's dynamic causal convolution around a sublayer; kernels.panels null: there is none.
struct PlConvolution {
    PlMatrix kernels;   // [2 * taps * groups, hidden]: of the sublayer's input, then of its output
    const float* base;  // [2][taps][hidden]
};

struct PlLayer {
    PlMatrix qkv, o, gate_up, down;  // gate_up: 16 of gate and 16 of up in turn
    const float* attention_norm;
    const float* mlp_norm;
    const float* q_norm;  // [head_dim] or null
    const float* k_norm;
    // bf16 [blocks][kv_heads], of each keys [head_dim / 2][16 tokens][2], and behind them values
    // [8 token pairs][head_dim][2].
    uint32_t* kv;
    int64_t window;         // positions to either side that a row sees, its own included; 0: all
    int64_t bidirectional;  // rows see the whole of what their sequence brings to the forward
    PlConvolution attention_convolution, mlp_convolution;
};

struct PlModel {
    int64_t hidden, intermediate, heads, kv_heads, head_dim, layers, vocab, rotary_half;
    int64_t taps, groups;                   // of convolutions
    float epsilon, scale, embedding_scale;  // scale: of attention scores
    const PlLayer* layer;
    PlMatrix head;
    const uint16_t* embedding;         // row-major bf16 [tokens, hidden]; null: in the panels
    const uint32_t* embedding_panels;  // packed as a head is
    int64_t mask_id;                   // the token whose embedding is mask_row, if that is not null
    const float* mask_row;
    const float* final_norm;
    const float* cos;  // [positions, rotary_half]
    const float* sin;
    PlMatrix context;  // a DFlash drafter's projection of features (fc), and its norm
    const float* context_norm;
};

struct PlBatch {
    int64_t rows, sequences, outputs, table_stride, taps, threads;
    const int32_t* ids;
    const int32_t* positions;
    const int32_t* seq_starts;
    const int32_t* block_tables;
    const int32_t* logit_rows;
    const int32_t* first;       // [sequences] first position that is seen; null: 0
    const int32_t* tap_layers;  // [taps], ascending or not; layer index whose output is wanted
    float* logits;              // [outputs, vocab], or null
    int64_t* argmax;            // [outputs]
    bool* finite;               // [outputs] whether all logits are finite, or null
    float* confidence;          // [outputs] the largest probability, or null
    uint16_t* hidden;           // [outputs, hidden] bf16 after the final norm, or null
    uint16_t* features;         // [rows, taps * hidden] bf16
    // [7 * layers + 3] when each part of the forward ended, in ns of CLOCK_MONOTONIC, or null: its
    // start, embedding; of each layer qkv, rotary, attention, o, gate_up, down, taps; head.
    int64_t* ticks;
    // Row r's keys and values are also written for the sequences sharers[share_starts[r]] to
    // sharers[share_starts[r + 1] - 1], at its position; null: no row's are.
    const int32_t* share_starts;  // [rows + 1]
    const int32_t* sharers;
};

// Features of committed rows, on their way into a DFlash drafter's KV.
struct PlContext {
    int64_t rows, stride, threads;  // stride: elements from one row's features to the next's
    const uint16_t* features;       // bf16 [rows, context.k]
    const int32_t* positions;
    const int32_t* slots;  // block * 16 + offset
};

}  // extern "C"
