/* SPDX-License-Identifier: Apache-2.0 */
/* Part of quant_simd.h, included there: decoding a tile. */

/* Products of code and step; a zero code is +0, so no product is -0. */
NB_FN struct vgroup nb_s_int4(bool wide, const struct nb_tile_view *view, unsigned j, unsigned transform)
{
    static const float factors[2][2] = {{0.125f, -0.125f}, {1, -1}};
    unsigned code = view->scale[j];
    return nibbles_load(view->code + 16 * j,
                        nb_scale_value(wide, code & 127, view->unit) * factors[transform][code >> 7]);
}

NB_FN struct vgroup nb_s_int8(bool wide, const struct nb_tile_view *view, unsigned j)
{
    struct vgroup x = bytes_load(view->code + 32 * j);
    vf unit = vf_set1(nb_scale_value(wide, view->scale[j] & 127, view->unit) * NB_INT8_STEP);
    NB_EACH_VECTOR (k)
        x.v[k] = vf_add(vf_mul(x.v[k], unit), vf_set1(0)); /* unit is 0 in records no encoder writes */
    return x;
}

NB_FN void nb_s_transform_back(struct vgroup *x)
{
    hadamard(x);
    NB_EACH_VECTOR (k)
        x->v[k] = vf_mul(x->v[k], vf_set1(0.03125f));
}

NB_FN void nb_s_finish(enum nb_dtype type, bool add, struct vgroup *x, const uint8_t *own, uint8_t *dst)
{
    const unsigned bytes = NB_GROUP * nb_value_bytes(type);
    __builtin_prefetch(dst + bytes / NB_GROUP * NB_AHEAD, 1);
    if (add) {
        struct vgroup o = group_load(type, own);
        __builtin_prefetch(own + bytes / NB_GROUP * NB_AHEAD);
        NB_EACH_VECTOR (k)
            x->v[k] = vf_add(x->v[k], o.v[k]);
    }
    group_store(type, add, dst, x);
}

/* Eight groups at a time, plain ones before transformed ones: a branch on every bit would be guessed wrong
 * half of the time. */
NB_FN void nb_s_decode(enum nb_dtype type, bool int4, bool add, const struct nb_tile_view *view,
                       const uint8_t *own, uint8_t *dst)
{
    const unsigned bytes = NB_GROUP * nb_value_bytes(type);
    bool wide = view->kind == NB_TILE_INT4_WIDE || view->kind == NB_TILE_INT8_WIDE;
    if (!add)
        own = dst; /* not read */
    for (unsigned j0 = 0; j0 < view->groups; j0 += 8) {
        unsigned left = view->groups - j0, all = left < 8 ? (1u << left) - 1 : 0xff;
        unsigned transformed = int4 ? view->domain[j0 / 8] : 0;
        for (unsigned rest = all & ~transformed; rest; rest &= rest - 1) {
            unsigned j = j0 + (unsigned)__builtin_ctz(rest);
            struct vgroup x = int4 ? nb_s_int4(wide, view, j, 0) : nb_s_int8(wide, view, j);
            nb_s_finish(type, add, &x, own + bytes * j, dst + bytes * j);
        }
        for (unsigned rest = transformed; rest; rest &= rest - 1) {
            unsigned j = j0 + (unsigned)__builtin_ctz(rest);
            struct vgroup x = nb_s_int4(wide, view, j, 1);
            nb_s_transform_back(&x);
            nb_s_finish(type, add, &x, own + bytes * j, dst + bytes * j);
        }
    }
}

NB_FN void nb_s_accumulate(float *sum, const struct vgroup *x)
{
    NB_EACH_VECTOR (k)
        vf_store(sum + NB_W * k, vf_add(vf_load(sum + NB_W * k), x->v[k]));
}
