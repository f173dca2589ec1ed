// What crosses the C boundary. Mirrored field by field in kernels/abi.py.
#pragma once

#include <cstdint>

extern "C" {

// Packed weights: panels [ceil(n/16)][ceil(k/32)*16][16][2] bf16; bias float32 [n] or null.
struct PlMatrix {
    const uint32_t* panels;
    const float* bias;
    int64_t n, k;
};

struct PlLayer {
    PlMatrix qkv, o, gate_up, down;  // gate_up: panels alternate gate, up
    const float* attention_norm;
    const float* mlp_norm;
    const float* q_norm;  // [head_dim] or null
    const float* k_norm;
    uint32_t* k_cache;  // [blocks][kv_heads][head_dim / 2][16 tokens][2] bf16
    uint32_t* v_cache;  // [blocks][kv_heads][8 token pairs][head_dim][2] bf16
};

struct PlModel {
    int64_t hidden, intermediate, heads, kv_heads, head_dim, layers, vocab, rotary_half;
    float epsilon, scale;  // scale: of attention scores
    const PlLayer* layer;
    PlMatrix head;
    const uint16_t* embedding;  // row-major bf16 [vocab, hidden]; null: tied to the head
    const float* final_norm;
    const float* cos;  // [positions, rotary_half]
    const float* sin;
};

struct PlBatch {
    int64_t rows, sequences, outputs, table_stride, taps, threads;
    const int32_t* ids;
    const int32_t* positions;
    const int32_t* seq_starts;
    const int32_t* block_tables;
    const int32_t* logit_rows;
    const int32_t* tap_layers;  // [taps], ascending or not; layer index whose output is wanted
    float* logits;              // [outputs, vocab]
    int64_t* argmax;            // [outputs]
    uint16_t* features;         // [rows, taps * hidden] bf16
};

}  // extern "C"
