/* SPDX-License-Identifier: Apache-2.0 */
/* The fat binary of the launching experiments' kernels as an object. It is empty in a build without nvcc. */
#include "tools/gpu-check/driver.h"

#ifdef NB_LAUNCH_IMAGE
__asm__(".pushsection .rodata\n"
        ".globl nb_launch_image\n"
        ".globl nb_launch_image_bytes\n"
        ".balign 64\n"
        "nb_launch_image:\n"
        ".incbin \"" NB_LAUNCH_IMAGE "\"\n"
        "1:\n"
        ".balign 8\n"
        "nb_launch_image_bytes:\n"
        ".quad 1b - nb_launch_image\n"
        ".type nb_launch_image, %object\n"
        ".type nb_launch_image_bytes, %object\n"
        ".size nb_launch_image, 1b - nb_launch_image\n"
        ".size nb_launch_image_bytes, 8\n"
        ".popsection\n");
#else
const unsigned char nb_launch_image[1] = {0};
const size_t nb_launch_image_bytes = 0;
#endif
