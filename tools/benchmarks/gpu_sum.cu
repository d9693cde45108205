// Sums of small bf16 tensors over GPUs that reach each other's memory, with the residual stream and
// the norm that follow, or without.
//
// Each rank writes its part into every rank's buffer; readers wait for the data themselves: a word
// that is -0.0 has not come (writers turn -0.0 into 0.0). Three buffers take turns by a counter on
// the device, so a captured graph needs no arguments. Call n uses buffer n % 3 and empties this
// rank's buffer of call n - 1, which it has read. Peers write there again for call n + 2, once they
// have this rank's part of call n + 1, which it writes after its call n has ended.
#include <cuda_bf16.h>
#include <cstdint>

constexpr uint32_t EMPTY = 0x80008000u;  // two bf16 of -0.0
constexpr int MOST = 8;

struct Peers { uint4 *buffer[MOST]; };  // of each rank: [3][ranks][words of 16 bytes]

__device__ __forceinline__ uint32_t full(uint32_t v) {  // -0.0 becomes 0.0, in both halves
    if ((v & 0xffffu) == 0x8000u) v &= 0xffff0000u;
    if ((v >> 16) == 0x8000u) v &= 0x0000ffffu;
    return v;
}
__device__ __forceinline__ uint4 load(const uint4 *p) {
    uint4 v;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}
__device__ __forceinline__ void store(uint4 *p, uint4 v) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};"
                 ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}
__device__ __forceinline__ bool has_empty(uint32_t v) {
    return (v & 0xffffu) == 0x8000u || (v >> 16) == 0x8000u;
}
__device__ __forceinline__ void add(float *sum, uint32_t v, int at) {
    sum[at] += __uint_as_float(v << 16);
    sum[at + 1] += __uint_as_float(v & 0xffff0000u);
}

// count: the number of calls so far, and of blocks that have ended in this one.
template <int RANKS>
__global__ void sum_kernel(Peers peers, int rank, const uint4 *part, uint4 *out, int num, int most,
                           uint32_t *count) {
    const uint32_t call = *(volatile uint32_t *)count;
    const uint32_t use = call % 3, clear = (call + 2) % 3;
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < num) {
        uint4 own = part[at];
        own = make_uint4(full(own.x), full(own.y), full(own.z), full(own.w));
#pragma unroll
        for (int i = 1; i < RANKS; i++) {
            const int to = (rank + i) % RANKS;
            store(peers.buffer[to] + (use * RANKS + rank) * most + at, own);
        }
        const uint4 empty = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
        uint4 *mine = peers.buffer[rank];
#pragma unroll
        for (int i = 0; i < RANKS; i++)
            if (i != rank) mine[(clear * RANKS + i) * most + at] = empty;
        float sum[8] = {};
#pragma unroll
        for (int i = 0; i < RANKS; i++) {
            uint4 v = own;
            if (i != rank) {
                const uint4 *from = mine + (use * RANKS + i) * most + at;
                do v = load(from);
                while (has_empty(v.x) || has_empty(v.y) || has_empty(v.z) || has_empty(v.w));
            }
            add(sum, v.x, 0); add(sum, v.y, 2); add(sum, v.z, 4); add(sum, v.w, 6);
        }
        uint4 result;
        uint32_t *words = (uint32_t *)&result;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            __nv_bfloat162 pair = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
            words[i] = *(uint32_t *)&pair;
        }
        out[at] = result;
    }
    if (gridDim.x == 1) {
        __syncthreads();
        if (threadIdx.x == 0) *count = call + 1;
    } else {
        __syncthreads();
        if (threadIdx.x == 0 && atomicAdd(count + 1, 1) == gridDim.x - 1) {
            count[1] = 0;
            *(volatile uint32_t *)count = call + 1;
        }
    }
}

// The same, then residual += sum, and the normalised row: one block a row.
template <int RANKS>
__global__ void fused_kernel(Peers peers, int rank, const uint4 *part, float *residual,
                             const uint4 *gain, uint4 *normed, int width, int most,
                             uint32_t *count, float eps) {
    __shared__ float warps[32];
    const uint32_t call = *(volatile uint32_t *)count;
    const uint32_t use = call % 3, clear = (call + 2) % 3;
    const bool is_in = threadIdx.x < width;
    const int at = blockIdx.x * width + threadIdx.x;
    float sum[8] = {};
    if (is_in) {
        uint4 own = part[at];
        own = make_uint4(full(own.x), full(own.y), full(own.z), full(own.w));
#pragma unroll
        for (int i = 1; i < RANKS; i++) {
            const int to = (rank + i) % RANKS;
            store(peers.buffer[to] + (use * RANKS + rank) * most + at, own);
        }
        const uint4 empty = make_uint4(EMPTY, EMPTY, EMPTY, EMPTY);
        uint4 *mine = peers.buffer[rank];
        const float4 *old = (const float4 *)(residual + 8 * (size_t)at);
        const float4 lo = old[0], hi = old[1];
#pragma unroll
        for (int i = 0; i < RANKS; i++)
            if (i != rank) mine[(clear * RANKS + i) * most + at] = empty;
#pragma unroll
        for (int i = 0; i < RANKS; i++) {
            uint4 v = own;
            if (i != rank) {
                const uint4 *from = mine + (use * RANKS + i) * most + at;
                do v = load(from);
                while (has_empty(v.x) || has_empty(v.y) || has_empty(v.z) || has_empty(v.w));
            }
            add(sum, v.x, 0); add(sum, v.y, 2); add(sum, v.z, 4); add(sum, v.w, 6);
        }
        sum[0] += lo.x; sum[1] += lo.y; sum[2] += lo.z; sum[3] += lo.w;
        sum[4] += hi.x; sum[5] += hi.y; sum[6] += hi.z; sum[7] += hi.w;
        float4 *new_ = (float4 *)(residual + 8 * (size_t)at);
        new_[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        new_[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
    }
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) squares += sum[i] * sum[i];
    for (int i = 16; i; i >>= 1) squares += __shfl_xor_sync(~0u, squares, i);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = squares;
    __syncthreads();
    float total = 0;
    for (int i = 0; i < blockDim.x / 32; i++) total += warps[i];
    const float scale = rsqrtf(total / (8 * width) + eps);
    if (is_in) {
        const uint4 g = gain[threadIdx.x];
        float gains[8] = {};
        add(gains, g.x, 0); add(gains, g.y, 2); add(gains, g.z, 4); add(gains, g.w, 6);
        uint4 result;
        uint32_t *words = (uint32_t *)&result;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            __nv_bfloat162 pair = __floats2bfloat162_rn(sum[2 * i] * scale * gains[2 * i],
                                                        sum[2 * i + 1] * scale * gains[2 * i + 1]);
            words[i] = *(uint32_t *)&pair;
        }
        normed[at] = result;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        if (gridDim.x == 1) *count = call + 1;
        else if (atomicAdd(count + 1, 1) == gridDim.x - 1) {
            count[1] = 0;
            *(volatile uint32_t *)count = call + 1;
        }
    }
}

__global__ void nothing_kernel() {}

// Rounds of a word to the peer and back: what a way over the link takes.
__global__ void ping_kernel(volatile uint32_t *mine, volatile uint32_t *theirs, int is_first,
                            int rounds, uint32_t base) {
    for (int i = 1; i <= rounds; i++) {
        if (is_first) { *theirs = base + i; while (*mine != base + i); }
        else { while (*mine != base + i); *theirs = base + i; }
    }
}

extern "C" {
int reach(int device, int peer) {
    cudaSetDevice(device);
    int can = 0;
    cudaDeviceCanAccessPeer(&can, device, peer);
    if (!can) return -1;
    cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    cudaGetLastError();
    return error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled ? 0 : (int)error;
}
int sum(void **buffers, int ranks, int rank, void *part, void *out, int num, int most, void *count,
        int threads, void *stream) {
    Peers peers{};
    for (int i = 0; i < ranks; i++) peers.buffer[i] = (uint4 *)buffers[i];
    const int blocks = (num + threads - 1) / threads;
    auto run = ranks == 2 ? sum_kernel<2> : ranks == 4 ? sum_kernel<4> : sum_kernel<8>;
    run<<<blocks, threads, 0, (cudaStream_t)stream>>>(peers, rank, (uint4 *)part, (uint4 *)out, num,
                                                      most, (uint32_t *)count);
    return (int)cudaGetLastError();
}
int fused(void **buffers, int ranks, int rank, void *part, void *residual, void *gain, void *normed,
          int rows, int width, int most, void *count, void *stream) {
    Peers peers{};
    for (int i = 0; i < ranks; i++) peers.buffer[i] = (uint4 *)buffers[i];
    auto run = ranks == 2 ? fused_kernel<2> : ranks == 4 ? fused_kernel<4> : fused_kernel<8>;
    run<<<rows, (width + 31) / 32 * 32, 0, (cudaStream_t)stream>>>(
        peers, rank, (uint4 *)part, (float *)residual, (uint4 *)gain, (uint4 *)normed, width, most,
        (uint32_t *)count, 1e-5f);
    return (int)cudaGetLastError();
}
int nothing(void *stream) {
    nothing_kernel<<<1, 384, 0, (cudaStream_t)stream>>>();
    return (int)cudaGetLastError();
}
int ping(void *mine, void *theirs, int is_first, int rounds, unsigned base, void *stream) {
    ping_kernel<<<1, 1, 0, (cudaStream_t)stream>>>((uint32_t *)mine, (uint32_t *)theirs, is_first,
                                                   rounds, base);
    return (int)cudaGetLastError();
}
}
