/* SPDX-License-Identifier: Apache-2.0 */
/* The fat binary of the kernels as an object. It is empty in a build without nvcc. */
#include "kernels.h"

#ifdef NB_GPU_IMAGE
__asm__(".pushsection .rodata\n"
        ".globl nb_gpu_image\n"
        ".hidden nb_gpu_image\n"
        ".globl nb_gpu_image_bytes\n"
        ".hidden nb_gpu_image_bytes\n"
        ".balign 64\n"
        "nb_gpu_image:\n"
        ".incbin \"" NB_GPU_IMAGE "\"\n"
        "1:\n"
        ".balign 8\n"
        "nb_gpu_image_bytes:\n"
        ".quad 1b - nb_gpu_image\n"
        ".type nb_gpu_image, %object\n"
        ".type nb_gpu_image_bytes, %object\n"
        ".size nb_gpu_image, 1b - nb_gpu_image\n"
        ".size nb_gpu_image_bytes, 8\n"
        ".popsection\n");
#else
const unsigned char nb_gpu_image[1] = {0};
const size_t nb_gpu_image_bytes = 0;
#endif
