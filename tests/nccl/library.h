/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's own libnccl.so.2 without a GPU. The functions of the CUDA runtime that the library contains get a
 * jump to functions of ours (runtime.c). Kernels run in device.c. Both read NCCL's structs at the places that
 * the library's debug information names (layout.py), so that one program serves all versions.
 */
#ifndef NIBBLE_TESTS_NCCL_LIBRARY_H
#define NIBBLE_TESTS_NCCL_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

/* ---- library.c ----------------------------------------------------------------------------------------- */

/* A member's place: its first byte and size. Bit fields have a first and a number of bits instead of a size.
 * The place of a struct is its size. */
struct place {
    int byte, size, bit, bits;
};

/* Members that runtime.c and device.c need: name in C, NCCL's name. */
#define LAYOUT(X) \
    X(device_size, "cudaDeviceProp") \
    X(device_major, "cudaDeviceProp.major") \
    X(device_minor, "cudaDeviceProp.minor") \
    X(device_multiprocessors, "cudaDeviceProp.multiProcessorCount") \
    X(plan_queue, "ncclComm.planner.planQueue.head") \
    X(plan_next, "ncclKernelPlan.next") \
    X(plan_args, "ncclKernelPlan.kernelArgs") \
    X(plan_tasks, "ncclKernelPlan.collTaskQueue.head") \
    X(task_next, "ncclTaskColl.next") \
    X(task_func, "ncclTaskColl.func") \
    X(task_send, "ncclTaskColl.sendbuff") \
    X(task_recv, "ncclTaskColl.recvbuff") \
    X(task_type, "ncclTaskColl.datatype") \
    X(task_op, "ncclTaskColl.opDev.op") \
    X(task_algo, "ncclTaskColl.algorithm:bits") \
    X(task_proto, "ncclTaskColl.protocol:bits") \
    X(args_size, "ncclDevKernelArgs") \
    X(args_comm, "ncclDevKernelArgs.comm") \
    X(args_channels, "ncclDevKernelArgs.channelMask") \
    X(args_storage, "ncclDevKernelArgs.workStorageType") \
    X(args_mask, "ncclDevKernelArgs.workMask") \
    X(args_work, "ncclDevKernelArgs.workBuf") \
    X(batch_size, "ncclDevWorkBatch") \
    X(batch_jump, "ncclDevWorkBatch.nextJump:bits") \
    X(batch_extends, "ncclDevWorkBatch.nextExtends:bits") \
    X(batch_type, "ncclDevWorkBatch.workType:bits") \
    X(batch_base, "ncclDevWorkBatch.offsetBase") \
    X(batch_set, "ncclDevWorkBatch.offsetBitset") \
    X(work_size, "ncclDevWorkColl") \
    X(work_lo, "ncclDevWorkColl.channelLo:bits") \
    X(work_hi, "ncclDevWorkColl.channelHi:bits") \
    X(work_registered, "ncclDevWorkColl.netRegUsed:bits") \
    X(work_by_address, "ncclDevWorkColl.redOpArgIsPtr:bits") \
    X(work_argument, "ncclDevWorkColl.redOpArg") \
    X(work_root, "ncclDevWorkColl.root") \
    X(part_lo, "ncclDevWorkColl.cbd.countLo") \
    X(part_mid, "ncclDevWorkColl.cbd.countMid") \
    X(part_hi, "ncclDevWorkColl.cbd.countHi") \
    X(grains_lo, "ncclDevWorkColl.chunkGrainsLo:bits") \
    X(grains_mid, "ncclDevWorkColl.chunkGrainsMid:bits") \
    X(grains_hi, "ncclDevWorkColl.chunkGrainsHi:bits") \
    X(work_send, "ncclDevWorkColl.sendbuff") \
    X(work_recv, "ncclDevWorkColl.recvbuff") \
    X(work_count, "ncclDevWorkColl.collnet.count") \
    X(work_chunk, "ncclDevWorkColl.collnet.chunkCount") \
    X(pair_size, "ncclDevWorkP2p") \
    X(pair_send, "ncclDevWorkP2p.sendAddr") \
    X(pair_recv, "ncclDevWorkP2p.recvAddr") \
    X(pair_send_bytes, "ncclDevWorkP2p.sendBytes") \
    X(pair_recv_bytes, "ncclDevWorkP2p.recvBytes") \
    X(pair_send_rank, "ncclDevWorkP2p.sendRank") \
    X(pair_recv_rank, "ncclDevWorkP2p.recvRank") \
    X(pair_channels, "ncclDevWorkP2p.nP2pChannels") \
    X(pair_base, "ncclDevWorkP2p.channelBase") \
    X(pair_send_channels, "ncclDevWorkP2p.nSendChannels") \
    X(pair_recv_channels, "ncclDevWorkP2p.nRecvChannels") \
    X(pair_send_chunk, "ncclDevWorkP2p.sendChunkSize_u32fp8") \
    X(pair_recv_chunk, "ncclDevWorkP2p.recvChunkSize_u32fp8") \
    X(pair_send_ll, "ncclDevWorkP2p.sendProtoLL:bits") \
    X(pair_recv_ll, "ncclDevWorkP2p.recvProtoLL:bits") \
    X(pair_send_registered, "ncclDevWorkP2p.sendNetReg:bits") \
    X(pair_recv_registered, "ncclDevWorkP2p.recvNetReg:bits") \
    X(comm_rank, "ncclKernelComm.rank") \
    X(comm_nranks, "ncclKernelComm.nRanks") \
    X(comm_node, "ncclKernelComm.node") \
    X(comm_nnodes, "ncclKernelComm.nNodes") \
    X(comm_abort, "ncclKernelComm.abortFlag") \
    X(comm_buffers, "ncclKernelComm.buffSizes") \
    X(comm_dense, "ncclKernelComm.collNetDenseToUserRank|denseToUserRank") \
    X(comm_channels, "ncclKernelComm.channels") \
    X(channel_size, "ncclDevChannel") \
    X(channel_peers, "ncclDevChannel.peers") \
    X(channel_counter, "ncclDevChannel.workCounter") \
    X(ring_prev, "ncclDevChannel.ring.prev") \
    X(ring_next, "ncclDevChannel.ring.next") \
    X(ring_ranks, "ncclDevChannel.ring.userRanks") \
    X(ring_index, "ncclDevChannel.ring.index") \
    X(direct_out, "ncclDevChannel.collnetDirect.out") \
    X(direct_heads, "ncclDevChannel.collnetDirect.nHeads") \
    X(direct_head, "ncclDevChannel.collnetDirect.headRank") \
    X(direct_list, "ncclDevChannel.collnetDirect.heads") \
    X(direct_up, "ncclDevChannel.collnetDirect.up") \
    X(direct_down, "ncclDevChannel.collnetDirect.down") \
    X(peer_send, "ncclDevChannelPeer.send") \
    X(peer_recv, "ncclDevChannelPeer.recv") \
    X(conn_size, "ncclConnInfo") \
    X(conn_buffs, "ncclConnInfo.buffs") \
    X(conn_tail, "ncclConnInfo.tail") \
    X(conn_head, "ncclConnInfo.head") \
    X(conn_step_size, "ncclConnInfo.stepSize") \
    X(conn_fifo, "ncclConnInfo.connFifo") \
    X(conn_step, "ncclConnInfo.step") \
    X(fifo_size, "ncclConnFifo") \
    X(fifo_mode, "ncclConnFifo.mode") \
    X(fifo_offset, "ncclConnFifo.offset") \
    X(fifo_bytes, "ncclConnFifo.size")

#define MEMBER(name, text) struct place name;
extern struct layout {
    LAYOUT(MEMBER)
} at;
#undef MEMBER

/* Print the names of LAYOUT, and read layout.py's answer. library_layout ends the program on an error. */
void library_names(void);
void library_layout(const char *file);

/* Load the library, and lead its CUDA runtime to ours. The functions end the program on an error. */
void library_open(const char *file);
/* Return a function that the library exports, or NULL if it is optional. */
void *library_function(const char *name, int optional);

/* Read a member of the struct at `p`. */
const void *place(const void *p, struct place at);
void *pointer_at(const void *p, struct place at);
int int_at(const void *p, struct place at);
unsigned u8_at(const void *p, struct place at);
uint64_t u64_at(const void *p, struct place at);
/* ... which has four or eight bytes, by the version. */
int64_t number_at(const void *p, struct place at);
unsigned bits_at(const void *p, struct place at);

_Noreturn void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- runtime.c ----------------------------------------------------------------------------------------- */

struct cuda_function {
    const char *name;
    void (*function)(void);
};
/* The runtime's functions. The last one has no name. */
extern const struct cuda_function cuda_functions[];
/* The name of files that hold virtual memory. */
#define VIRTUAL_MEMORY "emulated-gpu"
/* What a function of the runtime that is not in the list does. */
int cuda_missing(const char *name);

/* Make one of the two GPUs the calling thread's. */
void device_use(int device);
void *device_alloc(size_t size);
void device_free(void *p);
void *stream_create(void);
void stream_wait(void *stream);
void stream_destroy(void *stream);
/* Let no stream wait for a value in memory any more, as if the GPUs began anew. */
void device_reset(void);

/* ---- device.c ------------------------------------------------------------------------------------------ */

/* Begin and end to understand the kernels of a communicator. */
void device_comm(const void *comm);
void device_forget(const void *comm);
/* Return the work of a kernel with these arguments, to be run once by device_run. */
void *device_kernel(const void *args, size_t size, unsigned blocks);
void device_run(void *kernel);

#endif
