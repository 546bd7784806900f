// SPDX-License-Identifier: Apache-2.0
// Inside fide_siphash, proved by induction for frames of any length that come with any pauses: the tag is SipHash-2-4 of the frame's
// 64-bit words without its tag, in their order, then of its length, then of the four rounds of the end. Two SipRounds are any function
// here (fide_sip_rounds_any); that they are the right one is proved of fide_sip_rounds.
  logic past_q = 1'b0;
  logic open_q;                // a frame's last word has not come
  // The reference. It goes on when the module does, but by the order of its own.
  logic [255:0] ref_q;
  logic [7:0][63:0] queue_q;   // words of the frame that are to be hashed
  logic [3:0] queued_q;
  logic [7:0] bytes_q;         // of the frame so far, of its length's low byte
  logic ended_q;
  logic [1:0] end_q;           // the length, two rounds, two more

  logic [7:0][63:0] came;
  logic [3:0] came_words;
  always_comb begin
    for (int unsigned i = 0; i < 8; i++) came[i] = data_i[64*i +: 64];
    came_words = words_i;
    if (first_i && 32'(words_i) > fide_wire_pkg::TAG_AT / 8) begin
      for (int unsigned i = fide_wire_pkg::TAG_AT / 8; i < 7; i++) came[i] = came[i+1];
      came_words = words_i - 4'd1;
    end
  end

  logic [Words-1:0][255:0] ref_in, ref_out, ref_next;
  logic [Words-1:0][63:0] ref_word;
  logic absorbs, closes;
  assign absorbs = state_q == StRun;
  assign closes  = (state_q == StLength || state_q == StFinal0 || state_q == StFinal1) && queued_q == '0 && ended_q;
  for (genvar i = 0; i < int'(Words); i++) begin : gen_ref
    logic [255:0] from;
    if (i == 0) begin : gen_first
      assign from = ref_q;
      assign ref_word[i] = absorbs ? queue_q[i] : (end_q == 2'd0) ? {bytes_q, 56'd0} : 64'd0;
    end else begin : gen_next
      assign from = ref_next[i-1];
      assign ref_word[i] = queue_q[i];
    end
    assign ref_in[i] = {from[255:192] ^ ref_word[i], from[191:0]};
    fide_sip_rounds u_ref (.state_i(ref_in[i]), .state_o(ref_out[i]));
    assign ref_next[i] = (absorbs && 32'(queued_q) <= i) ? from : {ref_out[i][255:64], ref_out[i][63:0] ^ ref_word[i]};
    // One function: the same state has the same result.
    always_comb assume (rounds_in[i] != ref_in[i] || rounds_out[i] == ref_out[i]);
  end

  always_ff @(posedge clk_i) begin
    past_q <= 1'b1;
    if (!rst_ni) begin
      open_q <= 1'b0;
    end else begin
      if (absorbs) begin
        ref_q <= ref_next[Words-1];
        for (int unsigned i = 0; i < 8; i++) queue_q[i] <= (i + Words < 8) ? queue_q[(i+Words)%8] : 64'd0;
        queued_q <= (32'(queued_q) > Words) ? queued_q - 4'(Words) : 4'd0;
      end
      if (closes) begin
        ref_q <= (end_q == 2'd0) ? {ref_next[0][255:192], ref_next[0][191:128] ^ 64'hff, ref_next[0][127:0]} : ref_next[0];
        end_q <= end_q + 2'd1;
      end
      if (valid_i && ready_o) begin
        open_q <= !last_i;
        queue_q <= came;
        queued_q <= came_words;
        bytes_q <= (first_i ? 8'd0 : bytes_q) + {1'b0, came_words, 3'd0};
        ended_q <= last_i;
        end_q <= 2'd0;
        if (first_i) ref_q <= {key_i[127:64] ^ 64'h7465646279746573, key_i[63:0] ^ 64'h6c7967656e657261,
                               key_i[127:64] ^ 64'h646f72616e646f6d, key_i[63:0] ^ 64'h736f6d6570736575};
      end
    end
  end

  logic [63:0] ref_sum;
  logic [7:0] same_words;
  always_comb begin
    ref_sum = ref_q[63:0] ^ ref_q[127:64] ^ ref_q[191:128] ^ ref_q[255:192];
    for (int unsigned i = 0; i < 8; i++) same_words[i] = 32'(queued_q) <= i || rest_q[64*i +: 64] == queue_q[i];
  end
  always_comb begin
    assume (rst_ni == past_q);
    assume (words_i <= 4'd8);
    if (valid_i) assume (first_i == !open_q);
    if (past_q) begin
      // What is promised.
      if (valid_o) begin
        hashed_to_the_end: assert (ended_q && queued_q == '0 && end_q == 2'd3);
        the_tag: assert (tag_o == {ref_sum[7:0], ref_sum[15:8], ref_sum[23:16], ref_sum[31:24],
                                   ref_sum[39:32], ref_sum[47:40], ref_sum[55:48], ref_sum[63:56]});
        no_word_is_open: assert (!open_q);
      end
      // What makes it inductive.
      known_state: assert (state_q <= StDone);
      if (state_q == StIdle) nothing_yet: assert (!open_q);
      if (state_q != StIdle) begin
        same_state: assert (v_q == ref_q);
        same_length: assert ({hashed_q, 3'd0} == bytes_q);
        same_end: assert (last_q == ended_q && open_q == !ended_q);
      end
      if (state_q == StRun) begin
        same_queue: assert (left_q == queued_q && queued_q <= 4'd8 && (&same_words) && end_q == 2'd0);
      end
      if (state_q == StLength) at_the_length: assert (ended_q && queued_q == '0 && end_q == 2'd0);
      if (state_q == StFinal0) two_rounds_to_come: assert (ended_q && queued_q == '0 && end_q == 2'd1);
      if (state_q == StFinal1) rounds_to_come: assert (ended_q && queued_q == '0 && end_q == 2'd2);
    end
  end
