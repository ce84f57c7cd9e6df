/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec on a GPU: the interface between host and kernel. Compiled as C and by nvcc.
 *
 * One kernel, NB_GPU_KERNEL, does all operations, so that it can be resident. It processes *descriptors*.
 * Each descriptor is one call of the codec's functions (nibble/codec.h, device/device.h) and is divided into
 * *tickets*: a tile of values, a range of bytes to copy, and so on. Teams of threads draw tickets in order. The
 * kernel has two modes:
 *
 *   batch     The host passes a list of descriptors at launch. The kernel ends when all are finished.
 *   resident  The host fills a ring of descriptors in pinned memory while the kernel runs (struct nb_gpu_ring).
 *             Team 0 carries descriptors from the ring to device memory and the other teams work. The host
 *             ends the kernel.
 *
 * Ticket numbers: descriptor `d` owns tickets d.ticket to d.ticket + d.tickets - 1. d.ticket is the sum of
 * `tickets` of all descriptors before it: in a batch since the first, in a ring since its creation.
 *
 * A descriptor is finished when its result's `done` holds the descriptor's `id`. The kernel writes result and
 * data before, with a system-scope fence in between, so that the whole system sees them. Until then the
 * caller must neither free, change nor reuse the memory that the descriptor names.
 *
 * Memory: values and coded bytes may lie in GPU memory or in pinned host memory that is mapped into the
 * context. Workspaces must lie in GPU memory. Alignment: values at their size. Coded bytes, scales of sources
 * and lists at 4 (8 for pointers). Residuals (`err`) and workspaces at 16. Values, coded bytes and copies at
 * 16 are fastest. nb_gpu_plan rejects other alignments with -ENOTSUP, and the caller then does the work in
 * another way.
 *
 * The arithmetic is that of docs/wire-format.md. Results are byte for byte those of the C codec.
 */
#ifndef NIBBLE_KERNELS_KERNELS_H
#define NIBBLE_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The fat binary for cuModuleLoadData: NB_GPU_KERNEL for sm_80, 90, 100 and 120, and PTX for later ones.
 * nb_gpu_image_bytes is 0 in a build without nvcc. */
extern const unsigned char nb_gpu_image[];
extern const size_t nb_gpu_image_bytes;

#define NB_GPU_KERNEL "nb_gpu_work" /* void nb_gpu_work(struct nb_gpu_launch) */
/* A block has 1 to NB_GPU_TEAMS teams of NB_GPU_THREADS threads (its dimensions are threads, teams, 1), which
 * work independently, and NB_GPU_TEAM_SHARED bytes of dynamic shared memory for each team. A block of four
 * teams fills a multiprocessor's registers. The kernel's attributes say how many threads its code allows: three
 * teams on sm_100, where it needs a few more registers. */
#define NB_GPU_THREADS 128u
#define NB_GPU_TEAMS 4u
#define NB_GPU_TEAM_SHARED 50176u

/* From this major compute capability on the kernel can neither encode deltas nor guess their width: it would
 * need three more registers than a thread has. The host keeps these operations for itself
 * (nb_gpu_differs). */
#define NB_GPU_NO_DIFFERENCES 12

enum nb_gpu_op {
    NB_GPU_NONE = 0,
    NB_GPU_ENCODE,     /* nb_encode */
    NB_GPU_DECODE,     /* nb_decode: one source */
    NB_GPU_REDUCE,     /* nb_reduce */
    NB_GPU_ULP_ENCODE, /* nb_ulp_encode: n bytes at src against ref, of `width`, with its `limit`. GPUs of
                          NB_GPU_NO_DIFFERENCES lack this operation, NB_GPU_DELTA4_ENCODE and
                          NB_GPU_ULP_GUESS: length is -ENOTSUP */
    NB_GPU_ULP_DECODE, /* nb_ulp_decode: one source, n bytes, against ref (which may equal dst) */
    NB_GPU_COPY,       /* n bytes from src to dst, without overlap */
    NB_GPU_ZERO,       /* n bytes at dst */
    NB_GPU_HASH,       /* nb_hash64 of n bytes at src with seed `first`; result in `value` */
    NB_GPU_EQUAL,      /* value: 0 if n bytes at src and ref are the same */
    NB_GPU_LIKENESS, /* the similarity (device.h) of n bytes at src and ref on nsources samples: `value` is the
                          count near16 << 32 | near8, `escapes` counts far16 (nb_host_similarity, device/host/evidence.c) */
    NB_GPU_PROFILE,  /* sums of squares of nsources groups of 32 values of src: group i begins at value
                          i * first of src (a stride); FP32 results at dst, 4 bytes each, pairwise as in
                          docs/wire-format.md section 11. A non-finite value gives a non-finite sum.
                          With NB_GPU_SPREAD it is nb_host_sums (device/host/evidence.c) of n values; at most 65536 groups; length is what
                          that returns */
    NB_GPU_DELTA4_ENCODE, /* nb_delta4_encode: n bytes at src, values of `type`, against ref, with its
                             `limit`. `value` is the count of lossy runs (stats.runs is ceil(n / size /
                             NB_DELTA4_RUN)) */
    NB_GPU_DELTA4_DECODE, /* nb_delta4_decode: as NB_GPU_ULP_DECODE, with `type` for `width` */
    NB_GPU_REDUCE_EXACT, /* nb_exact_reduce (device/host/exact.c): n values, `type` is an ncclDataType_t, `mode` an
                             ncclRedOp_t; `sources` gives addresses of plain values (their bytes and codec do not
                             count); own may be 0, may equal dst. A NaN is some NaN, but for sums of 16-bit types of at
                             most 64 sources, which are the codec's */
    NB_GPU_ULP_GUESS, /* nb_ulp_guess_width of n bytes at src and ref: `value` is the width */
    NB_GPU_SAMPLE, /* nb_host_sample (device/host/evidence.c): nsources samples (at most 65536) of n values at src; FP32
                             at dst; length is what it returns, nsources or 0 */
    NB_GPU_PICK, /* values at positions of a block (codec/pick.h): n values of `width` bytes (1, 2 or 4) at
                    src, number `first` and on of a block of `limit` values with `picks` positions. dst
                    gets nsources parts from `part` on, in order, as patterns of 4 bytes. All positions of
                    these parts must lie within the n values (nb_pick_parts) */
    NB_GPU_OP_COUNT
};

/* Return 1 for an operation that GPUs from NB_GPU_NO_DIFFERENCES on lack, else 0. */
static inline int nb_gpu_differs(unsigned op)
{
    return op == NB_GPU_ULP_ENCODE || op == NB_GPU_DELTA4_ENCODE || op == NB_GPU_ULP_GUESS;
}

/* One contribution to a sum. `sources` points to an array of these in memory that the GPU reads (8-byte
 * aligned). */
struct nb_gpu_source {
    uint64_t coded; /* address */
    uint64_t bytes;
    uint32_t codec; /* enum nb_codec */
    uint32_t zero;
};

/* The result of a descriptor, 128 bytes: pinned or device memory, 16-byte aligned. */
struct nb_gpu_result {
    int64_t length;     /* return value of the C function: length or 0, or -EBADMSG, -E2BIG */
    uint64_t value;     /* see enum nb_gpu_op */
    uint64_t nonfinite; /* encode, if NB_GPU_STATS: struct nb_encode_stats of this span alone */
    uint64_t escapes;
    uint64_t fallback;
    uint64_t flushed;
    uint64_t bounded;
    uint64_t zero;
    double signal2;
    double noise2;
    double carried2;
    uint32_t zeros[9];
    uint32_t done; /* written last: the descriptor's id */
};

#define NB_GPU_STATS 1u  /* flags: fill in the statistics */
#define NB_GPU_SPREAD 2u /* a profile's groups are spread over n values */

/* The part of a squared bound that an encoder relies on where it estimates energies (encode.cuh says why). */
#define NB_GPU_SURE (225.0f / 256)

/* One call. 160 bytes, 16-byte aligned, read as 16-byte words. Addresses are the GPU's. */
struct nb_gpu_desc {
    uint64_t ticket;  /* number of its first ticket, set by the caller */
    uint32_t tickets; /* set by nb_gpu_plan */
    uint32_t id;      /* any number other than the result's previous `done` */
    uint8_t op;       /* enum nb_gpu_op */
    uint8_t type;     /* enum nb_dtype. Exact reduction: ncclDataType_t */
    uint8_t codec;    /* enum nb_codec */
    uint8_t mode;     /* enum nb_ef_mode. NB_EF_OFF: err and scale are unused. Exact reduction: ncclRedOp_t */
    uint8_t width;    /* enum nb_ulp_width. Pick: bytes of a value */
    uint8_t flags;
    uint8_t zero[2];
    uint32_t nsources;
    uint32_t every;   /* energies as in nb_encode_stats, at most 65536. 0: NB_STATS_EVERY */
    uint64_t n;       /* values, or bytes */
    uint64_t first;   /* index in the rank block. Hash: seed. Profile: stride */
    uint64_t src;     /* values to encode; bytes of `cur` */
    uint64_t ref;     /* reference of ulp. Comparison: the other bytes */
    uint64_t own;     /* own values of a sum. May be 0, may equal dst */
    uint64_t dst;     /* coded bytes or values */
    uint64_t sources; /* struct nb_gpu_source[nsources]. A decoder has one */
    uint64_t err;     /* feedback: bases of the block's arrays, as in struct nb_ef */
    uint64_t scale;
    uint64_t limit;  /* ulp, delta4: as in nb_ulp_encode. Pick: values of the block */
    uint64_t work;   /* workspace of nb_gpu_plan's size. The caller zeroes it before its first use, the kernel
                 leaves it zeroed */
    uint64_t result; /* struct nb_gpu_result */
    float beta, bound;    /* feedback */
    uint64_t scratch;     /* nb_gpu_scratch bytes of GPU memory, 16-byte aligned, overwritten */
    uint32_t picks, part; /* pick */
    float share;          /* feedback: the square of `bound` times NB_GPU_SURE, set by nb_gpu_plan */
    uint32_t pad;
};

/*
 * Check a descriptor and set its `tickets`. Arguments are those of nibble/codec.h. `dst` must have room for
 * nb_encode_bound or nb_ulp_bound bytes, rounded up to a multiple of 4. Return the bytes of workspace that it
 * needs (a multiple of 16, may be 0), -EINVAL for arguments that the C function rejects too, or -ENOTSUP for
 * addresses with another alignment than above. A pure function of the descriptor, for any thread.
 */
int64_t nb_gpu_plan(struct nb_gpu_desc *desc);

/* Return the bytes that a planned descriptor needs at `scratch`, 0 for most. Encoders of deltas (ulp, delta4)
 * store coded blocks there until their final offsets are known: as many bytes as there are to encode. */
uint64_t nb_gpu_scratch(const struct nb_gpu_desc *desc);

/* ---- Launching ---------------------------------------------------------------------------------------- */

#define NB_GPU_RING 64u  /* descriptors of a ring, a power of two */
#define NB_GPU_STOPS 64u /* launches that the host may end before the first of them has begun */

/*
 * A ring in pinned host memory, zeroed at creation. The kernel writes `started` and `ended`, the host all
 * other fields.
 *
 *   publish  Wait until descriptor number s - NB_GPU_RING is finished, by its result. Write desc[s %
 *            NB_GPU_RING]. Then store published = s + 1 with release order.
 *   end      Launches of the kernel are numbered from 0 in the order in which they run. To end launch k after
 *            descriptor number s - 1, wait until `ended` is more than k - NB_GPU_STOPS (that launch has read
 *            its number). Store stop[k % NB_GPU_STOPS] = s, then stops = k + 1 with release order.
 *            Descriptors from s on are left to launch k + 1. s may be larger than `published`: descriptors up
 *            to s - 1 are still to be published.
 *   launch   Use two teams or more, since the first only carries. Launches of one ring must not overlap.
 *   started  Number of launches that have begun. `ended`: launches that have ended. For watchdogs.
 */
struct nb_gpu_ring {
    uint64_t published;
    uint64_t pad0[15];
    uint64_t stops;
    uint64_t pad1[15];
    uint64_t stop[NB_GPU_STOPS];
    uint64_t started;
    uint64_t pad2[15];
    uint64_t ended;
    uint64_t pad3[15];
    struct nb_gpu_desc desc[NB_GPU_RING];
};

/* State in GPU memory, zeroed at creation, 16-byte aligned. Each ring or list that may run concurrently has
 * its own. The kernel leaves it ready for the next launch. */
struct nb_gpu_state {
    uint64_t next;     /* next ticket to draw */
    uint64_t launches; /* launches that have ended */
    uint64_t carried;  /* descriptors taken from the ring */
    uint64_t end;      /* resident: first ticket beyond this launch, plus 1. 0: unknown */
    uint64_t last;     /* sum of the tickets of all descriptors carried */
    uint32_t left;     /* blocks that have ended */
    uint32_t pad;
    uint64_t begin[NB_GPU_RING]; /* first ticket of the descriptor there, plus 1. 0: being written */
    struct nb_gpu_desc desc[NB_GPU_RING];
};

/* The kernel's argument. */
struct nb_gpu_launch {
    uint64_t state; /* struct nb_gpu_state */
    uint64_t ring;  /* struct nb_gpu_ring as the GPU sees it. 0: a batch */
    uint64_t
        list; /* batch: struct nb_gpu_desc[count], with tickets from 0 on and ids that differ from done */
    uint64_t count;
};

#ifdef __cplusplus
}
#endif
#endif
