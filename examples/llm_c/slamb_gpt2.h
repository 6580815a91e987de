/* slamb for train_gpt2.c of llm.c: one optimizer over the parameters of its GPT-2, on processes that MPI starts. Usable from C. */
#ifndef SLAMB_GPT2_H
#define SLAMB_GPT2_H

#include <mpi.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The tensors of llm.c's GPT-2, in its order: wte, wpe, ln1w, ln1b, qkvw, …, lnfb. */
#define SLAMB_GPT2_TENSORS 16

/** Options; equal on all processes. */
typedef struct slamb_gpt2_options {
  const char* optimizer;            /**< "adamw", "lamb", "lamb+int4" or "one_bit_lamb" */
  double beta1;                     /**< in [0, 1) */
  double beta2;                     /**< in [0, 1) */
  double epsilon;                   /**< > 0 */
  double weight_decay;              /**< >= 0; biases and layer norms have none */
  unsigned long long warm_up_steps; /**< of one_bit_lamb: steps with dense gradients, >= 1 */
  size_t vocabulary;                /**< rows of wte that tokens use; 0: all. The others are not exchanged as bits */
  size_t positions;                 /**< rows of wpe that sequences use; 0: all */
  unsigned threads;                 /**< of this process; 0: all cores */
} slamb_gpt2_options;

typedef struct slamb_gpt2 slamb_gpt2;

/**
 * An optimizer over the model of this process. Collective: all processes of `processes` must call it, with equal parameters.
 *
 * @param parameters  [the sum of sizes] floats in host memory, the tensors one after another. They must outlive the optimizer
 * @param gradients   [the sum of sizes] of this process's own batch; the optimizer averages over processes. The same lifetime
 * @param sizes       [SLAMB_GPT2_TENSORS] elements of each tensor, as llm.c's fill_in_parameter_sizes writes them. A tensor of L layers is
 *                    L tensors for the optimizer; L and the number of channels C follow from the sizes. Biases and layer norms have a
 *                    trust ratio of 1
 * @return NULL for wrong sizes or options, and if a process fails; slamb_gpt2_error() has the reason
 */
slamb_gpt2* slamb_gpt2_create(float* parameters, const float* gradients, const size_t* sizes,
                              const slamb_gpt2_options* options, MPI_Comm processes);

/**
 * One step: reads the gradients and updates the parameters. Collective: all processes must take equally many steps, or the others wait
 * for the one that is missing. If a gradient is not finite on one process, all of them skip the step: slamb_gpt2_skipped_steps counts it.
 * @param learning_rate  >= 0, finite
 * @return 0; 1 after an error: slamb_gpt2_error() has the reason. Then call MPI_Abort
 */
int slamb_gpt2_step(slamb_gpt2* optimizer, double learning_rate);

/** Steps that all processes have skipped so far, with the parameters as they were. 0 for NULL. */
unsigned long long slamb_gpt2_skipped_steps(const slamb_gpt2* optimizer);

/** Bytes that this process has sent so far, counted as a bandwidth-optimal collective sends them. 0 for NULL. */
unsigned long long slamb_gpt2_sent_bytes(const slamb_gpt2* optimizer);

/**
 * Writes the parameters and the state of this process to a file, which is replaced as a whole or not at all. Not collective, but all
 * processes must do it after the same step.
 * @param path  another one on each process
 * @return 0; 1 after an error, with the old file as it was: slamb_gpt2_error() has the reason
 */
int slamb_gpt2_save(const slamb_gpt2* optimizer, const char* path);

/**
 * Continues from the file that slamb_gpt2_save has written on the same process, of as many processes: sets the parameters and the state.
 * Not collective, but all processes must do it. The optimizer and the model must be as they were at the save.
 * @return 0; 1 after an error, with nothing changed: slamb_gpt2_error() has the reason. Then call MPI_Abort
 */
int slamb_gpt2_load(slamb_gpt2* optimizer, const char* path);

/** Before MPI_Finalize, and before the parameters and the gradients are freed. NULL does nothing. */
void slamb_gpt2_free(slamb_gpt2* optimizer);

/** The reason of this thread's last error; "" if there was none. Valid until the next call. */
const char* slamb_gpt2_error(void);

#ifdef __cplusplus
}
#endif

#endif
