/* SPDX-License-Identifier: Apache-2.0 */
/* Decode a tile. quant_simd.h includes this. */

NB_GROUP_IS_32("offsets of codes: 16 or 32 bytes a group");

/* Get the steps of a tile's groups, NB_W at a time: signed, times 1/8 for plain groups and times `back` for
 * transformed ones. Whole vectors of scales may be read: the codes behind them are longer than a vector. */
NB_FN void nb_s_steps(bool int4, const struct nb_tile_view *view, float back, float *step)
{
    const float *table = nb_scale_table[view->kind == NB_TILE_INT4_WIDE || view->kind == NB_TILE_INT8_WIDE];
    for (unsigned j = 0; j < view->groups; j += NB_W) {
        uint64_t raw[NB_W / 8];
        memcpy(raw, view->scale + j, NB_W);
        vi code = vi_from_bytes(raw);
        vf value = vf_mul(vf_gather(table, vi_and(code, vi_set1(127))), vf_set1(view->unit));
        /* below the floor: 0, see nb_scale_value */
        vm coded = vi_gt(vi_cast(value), vi_set1((int)NB_FLUSH_BITS - 1));
        value = vf_cast(vi_blend(coded, vi_set1(0), vi_cast(value)));
        if (int4) {
            unsigned domain = 0;
            for (unsigned b = 0; b < NB_W / 8; b++)
                domain |= (unsigned)view->domain[j / 8 + b] << 8 * b;
            vi factor = vi_blend(vm_from_bits(domain), vi_cast(vf_set1(0.125f)), vi_cast(vf_set1(back)));
            vi sign = vi_slli(vi_srli(code, 7), 31);
            value = vf_cast(vi_or(vi_cast(vf_mul(value, vf_cast(factor))), sign));
        } else {
            value = vf_mul(value, vf_set1(view->fine));
        }
        vf_store(step + j, value);
    }
}

NB_FN struct vgroup nb_s_int8(const struct nb_tile_view *view, unsigned j, float step)
{
    struct vgroup x = bytes_load(view->code + 32 * j);
    vf unit = vf_set1(step);
    NB_EACH_VECTOR(k)
    x.v[k] = vf_muladd(x.v[k], unit, vf_set1(0)); /* the step is 0 only in records that no encoder writes */
    return x;
}

NB_FN void nb_s_transform_back(struct vgroup *x)
{
    hadamard(x);
    NB_EACH_VECTOR(k)
    x->v[k] = vf_mul(x->v[k], vf_set1(0.03125f));
}

NB_FN void nb_s_finish(enum nb_dtype type, bool add, struct vgroup *x, const uint8_t *own, uint8_t *dst)
{
    const unsigned bytes = NB_GROUP * nb_value_bytes(type);
    __builtin_prefetch(dst + bytes / NB_GROUP * NB_AHEAD, 1);
    if (add) {
        struct vgroup o = group_load(type, own);
        __builtin_prefetch(own + bytes / NB_GROUP * NB_AHEAD);
        NB_EACH_VECTOR(k)
        x->v[k] = vf_add(x->v[k], o.v[k]);
    }
    group_store(type, add, dst, x);
}

/* Return the domain bits of the (at most) 64 groups from j0 on. */
NB_FN uint64_t nb_s_domains(const struct nb_tile_view *view, unsigned j0)
{
    uint64_t bits = nb_get32(view->domain + j0 / 8);
    return j0 + 32 < view->groups ? bits | (uint64_t)nb_get32(view->domain + j0 / 8 + 4) << 32 : bits;
}

/* Decode 64 groups at a time, plain ones before transformed ones: a branch on every bit would be mispredicted
 * half of the time, and so would the ends of shorter loops. The step includes the product with 1/32. Every
 * number is a multiple of 2^-5 times the step, far from denormals, so the result stays the same. */
NB_FN void nb_s_decode(enum nb_dtype type, bool int4, bool add, const struct nb_tile_view *view,
                       const uint8_t *own, uint8_t *dst)
{
    const unsigned bytes = NB_GROUP * nb_value_bytes(type);
    float step[NB_TILE_GROUPS] __attribute__((aligned(64)));
    nb_s_steps(int4, view, 0.03125f, step);
    if (!add)
        own = dst; /* unused */
    for (unsigned j0 = 0; j0 < view->groups; j0 += 64) {
        unsigned left = view->groups - j0;
        uint64_t all = left < 64 ? ((uint64_t)1 << left) - 1 : UINT64_MAX;
        uint64_t transformed = int4 ? nb_s_domains(view, j0) : 0;
        for (uint64_t rest = all & ~transformed; rest; rest &= rest - 1) {
            unsigned j = j0 + (unsigned)__builtin_ctzll(rest);
            struct vgroup x = int4 ? nibbles_load(view->code + 16 * j, step[j]) : nb_s_int8(view, j, step[j]);
            nb_s_finish(type, add, &x, own + bytes * j, dst + bytes * j);
        }
        for (uint64_t rest = transformed; rest; rest &= rest - 1) {
            unsigned j = j0 + (unsigned)__builtin_ctzll(rest);
            struct vgroup x = nibbles_load(view->code + 16 * j, step[j]);
            hadamard(&x);
            nb_s_finish(type, add, &x, own + bytes * j, dst + bytes * j);
        }
    }
}

NB_FN void nb_s_accumulate(float *sum, const struct vgroup *x)
{
    NB_EACH_VECTOR(k)
    vf_store(sum + NB_W * k, vf_add(vf_load(sum + NB_W * k), x->v[k]));
}
