// SPDX-License-Identifier: Apache-2.0
// The parser: rounds, exits and readies that are taken say what their bytes say, and the batch is stored; a frame with one thing wrong is
// dropped for that reason. With pauses and back to back; with buffers that run out, and a full queue of events.
module fide_rx_parser_tb;
`include "fide_bench.svh"
`include "fide_bench_frame.svh"

`ifndef IS_REQUEST
`define IS_REQUEST 0
`endif
  localparam int unsigned Members = 4, MaxBeats = 4, Buffers = 4, Path = 1;
  localparam bit IsRequest = `IS_REQUEST;
  localparam bit Store = !IsRequest;
  logic clear, valid, last, user, tag_bad, store_valid, ev_valid, ev_full, drop_valid;
  logic [511:0] base, data, store_data;
  logic [63:0] keep;
  logic [Members-1:0][15:0] ids;
  logic [15:0] ids_valid;
  logic [3:0] me;
  logic [3:0] store_addr;
  logic [1:0] free_valid;
  logic [1:0][fide_lowi_pkg::BufW-1:0] free_buffer;
  fide_lowi_pkg::ev_t ev;
  fide_lowi_pkg::drop_e why;
  fide_rx_parser #(
    .Members(Members), .Path(Path), .MaxBeats(MaxBeats), .Buffers(Buffers), .StoreBatch(Store), .IsRequest(IsRequest)
  ) dut (
    .clk_i(clk), .rst_ni(rst_n), .clear_i(clear), .base_i(base), .ids_i(ids), .ids_valid_i(ids_valid), .me_i(me),
    .s_axis_tvalid_i(valid), .s_axis_tdata_i(data), .s_axis_tkeep_i(keep), .s_axis_tlast_i(last), .s_axis_tuser_i(user),
    .tag_bad_i(tag_bad), .store_valid_o(store_valid), .store_addr_o(store_addr), .store_data_o(store_data),
    .free_valid_i(free_valid), .free_buffer_i(free_buffer), .ev_valid_o(ev_valid), .ev_o(ev), .ev_full_i(ev_full),
    .drop_valid_o(drop_valid), .drop_o(why)
  );

  logic [511:0] stored [16];
  always @(posedge clk) if (store_valid) stored[store_addr] <= store_data;

  // CRC-32C bit by bit, lowest bit of each byte first.
  function automatic logic [31:0] crc_of;
    crc_of = '1;
    for (int unsigned i = 64; i < 64 * words_of(); i++) begin
      crc_of ^= (i < bytes_len) ? 32'(bytes[i]) : 32'd0;
      repeat (8) crc_of = crc_of[0] ? (crc_of >> 1) ^ 32'h82f6_3b78 : crc_of >> 1;
    end
  endfunction

  typedef enum int { Round, Empty, Exit, Ready, Request } what_e;
  int unsigned seen [16];
  int unsigned taken = 0, value_len, padded;
  logic [fide_lowi_pkg::BufW-1:0] owned [$];

  // A frame that is taken.
  task automatic build(input what_e what);
    logic [63:0] number;
    int unsigned dice;
    bytes_len = 64;
    for (int unsigned i = 0; i < 2048; i++) bytes[i] = 8'($urandom());
    put(fide_wire_pkg::MAGIC_AT, 2, 64'(fide_wire_pkg::MAGIC));
    bytes[fide_wire_pkg::VERSION_FLAGS_AT][7:4] = fide_wire_pkg::VERSION;
    for (int unsigned i = 0; i < 4; i++) bytes[fide_wire_pkg::CLUSTER_AT + i] = base[8*(fide_wire_pkg::CLUSTER_AT + i) +: 8];
    bytes[fide_wire_pkg::PATH_KEY_AT] = {4'((what == Round || what == Empty) ? Path : 0), base[8*fide_wire_pkg::PATH_KEY_AT +: 4]};
    bytes[fide_wire_pkg::KIND_AT] = (what == Round || what == Empty) ? fide_wire_pkg::KIND_COPY : fide_wire_pkg::KIND_MESSAGE;
    bytes[fide_wire_pkg::CHANNEL_AT] = fide_wire_pkg::CHANNEL_GROUPS;
    for (int unsigned i = 0; i < 16; i++) begin
      if (i < 4 || i >= 8) bytes[fide_wire_pkg::GROUP_AT + i] = base[8*(fide_wire_pkg::GROUP_AT + i) +: 8];
    end
    // Of another member; a request may be this one's own.
    dice = below(Members);
    if (!IsRequest && dice == 32'(me)) dice = (dice + 1) % Members;
    put(fide_wire_pkg::FROM_AT, 2, 64'(ids[dice]));
    bytes[fide_wire_pkg::ENGINE_AT] = fide_wire_pkg::ENGINE_LOWI;
    case (what)
      Exit: bytes[fide_wire_pkg::TYPE_AT] = fide_wire_pkg::LOWI_EXIT;
      Ready: bytes[fide_wire_pkg::TYPE_AT] = fide_wire_pkg::LOWI_READY;
      Request: bytes[fide_wire_pkg::TYPE_AT] = fide_wire_pkg::LOWI_FORWARD;
      default: bytes[fide_wire_pkg::TYPE_AT] = fide_wire_pkg::LOWI_ROUND;
    endcase
    if (what == Round || what == Request) begin
      // Up to what MaxBeats hold.
      value_len = below(64 * MaxBeats - 40 + 1);
      padded = 8 * ((value_len + 7) / 8);
      put(fide_wire_pkg::ENTRIES_AT, 2, 64'd1);
      put(fide_wire_pkg::ROUND_ZERO_AT, 2, 64'd0);
      put(fide_wire_pkg::BATCH_LEN_AT, 4, 64'(16 + padded));
      bytes[fide_wire_pkg::ENTRY_KIND_AT] = 8'(below(4));
      bytes[fide_wire_pkg::ENTRY_ZERO_AT] = 8'd0;
      put(fide_wire_pkg::VALUE_LEN_AT, 4, 64'(value_len));
      number = draw64() | 64'd1;
      put(fide_wire_pkg::ENTRY_NUMBER_AT, 8, number);
      for (int unsigned i = value_len; i < padded; i++) bytes[fide_wire_pkg::VALUE_AT + i] = 8'd0;
      bytes_len = fide_wire_pkg::VALUE_AT + padded;
    end else if (what == Empty) begin
      put(fide_wire_pkg::ENTRIES_AT, 2, 64'd0);
      put(fide_wire_pkg::ROUND_ZERO_AT, 2, 64'd0);
      put(fide_wire_pkg::BATCH_LEN_AT, 4, 64'd0);
      bytes_len = fide_wire_pkg::BATCH_AT;
    end
  endtask

  what_e what;
  int unsigned wrong, at;
  logic drops, spoilt_tag, spoilt_mac, full;
  fide_lowi_pkg::drop_e reason;

  // One thing that is wrong with it.
  task automatic spoil;
    int unsigned dice;
    // An index with a call in it would be drawn twice.
    dice = below(24);
    reason = fide_lowi_pkg::drop_e'(wrong);
    drops = 1'b1;
    case (reason)
      fide_lowi_pkg::DropShort: bytes_len = 1 + below(47);
      fide_lowi_pkg::DropOversize: bytes_len = 1473 + below(500);
      fide_lowi_pkg::DropMagic: bytes[dice % 2] ^= 8'd1 << below(8);
      fide_lowi_pkg::DropVersion: bytes[fide_wire_pkg::VERSION_FLAGS_AT] ^= 8'd16 << below(4);
      fide_lowi_pkg::DropCluster: bytes[fide_wire_pkg::CLUSTER_AT + dice % 4] ^= 8'd1 << below(8);
      fide_lowi_pkg::DropKey: bytes[fide_wire_pkg::PATH_KEY_AT] ^= 8'd1 << below(4);
      fide_lowi_pkg::DropTag: spoilt_tag = 1'b1;
      fide_lowi_pkg::DropService: begin
        case (dice % 6)
          0: bytes[fide_wire_pkg::KIND_AT] ^= 8'd16;
          1: bytes[fide_wire_pkg::CHANNEL_AT] ^= 8'd1 << below(8);
          2: bytes[fide_wire_pkg::GROUP_AT + dice / 6] ^= 8'd1 << below(8);
          3: bytes[fide_wire_pkg::ENGINE_AT] ^= 8'd1 << below(8);
          4: bytes[fide_wire_pkg::TYPE_AT] ^= 8'd8;
          default: bytes_len = 48 + below(15);
        endcase
      end
      fide_lowi_pkg::DropGeneration: bytes[fide_wire_pkg::GENERATION_AT + dice % 8] ^= 8'd1 << below(8);
      fide_lowi_pkg::DropMember: put(fide_wire_pkg::FROM_AT, 2, (one_in(2) && !IsRequest) ? 64'(ids[me[1:0]]) : 64'(ids[3]) ^ 64'd512);
      fide_lowi_pkg::DropPath: begin
        if (what == Round || what == Empty) bytes[fide_wire_pkg::PATH_KEY_AT] ^= 8'd16 << below(4);
        else drops = 1'b0;
      end
      fide_lowi_pkg::DropTooLarge: begin
        if (what == Round || what == Request) begin
          if (one_in(2)) put(fide_wire_pkg::ENTRIES_AT, 2, 64'd2 + 64'(below(1000)));
          else begin
            // One word more than is held.
            put(fide_wire_pkg::BATCH_LEN_AT, 4, 64'(64 * MaxBeats + 8 - 24));
            put(fide_wire_pkg::VALUE_LEN_AT, 4, 64'(64 * MaxBeats + 8 - 40));
            bytes_len = 64 + 64 * MaxBeats + 8;
          end
        end else drops = 1'b0;
      end
      default: begin
        reason = fide_lowi_pkg::DropMalformed;
        at = below((what == Round || what == Request) ? 9 : (what == Empty) ? 5 : 2);
        case (at)
          0: spoilt_mac = 1'b1;
          1: bytes_len += 8;
          2: put(fide_wire_pkg::ROUND_ZERO_AT, 2, 64'd1 << below(16));
          3: put(fide_wire_pkg::BATCH_LEN_AT, 4, get(fide_wire_pkg::BATCH_LEN_AT, 4) ^ (64'd1 << below(32)));
          4: bytes_len -= 8;
          5: bytes[fide_wire_pkg::ENTRY_ZERO_AT] = 8'd1 << below(8);
          6: put(fide_wire_pkg::ENTRY_NUMBER_AT, 8, 64'd0);
          7: bytes[fide_wire_pkg::ENTRY_KIND_AT] = 8'd4 + 8'(below(200));
          default: begin
            if (padded != value_len) bytes[fide_wire_pkg::VALUE_AT + padded - 1] = 8'd1 << below(8);
            else put(fide_wire_pkg::VALUE_LEN_AT, 4, 64'(value_len) + 64'd9 + 64'd8 * 64'(below(4)));
          end
        endcase
      end
    endcase
  endtask

  logic no_room;
  initial begin
    {clear, valid, last, user, tag_bad, ev_full, free_valid, free_buffer, data, keep} = '0;
    for (int unsigned i = 0; i < 16; i++) base[32*i +: 32] = $urandom();
    ids_valid = 16'h000f;
    for (int unsigned i = 0; i < 16; i++) seen[i] = 0;
    reset();
    for (int unsigned n = 0; n < 6_000; n++) begin
      if (n % 100 == 0) begin
        // Another group.
        for (int unsigned i = 0; i < 16; i++) base[32*i +: 32] = $urandom();
        ids[0] = 16'($urandom());
        for (int unsigned i = 1; i < Members; i++) ids[i] = ids[i-1] + 16'd1 + 16'(below(100));
        me = 4'(below(Members));
      end
      what = IsRequest ? Request : what_e'(below(4));
      build(what);
      {drops, spoilt_tag, spoilt_mac} = '0;
      if (one_in(2)) begin
        wrong = below(13);
        spoil();
      end
      full = one_in(20) && !drops;
      no_room = Store && owned.size() == Buffers && what == Round;
      for (int unsigned w = 0; w < words_of(); w++) begin
        valid = 1'b1;
        data = word_of(w);
        // Behind the last byte there may be anything.
        if (64 * (w + 1) > bytes_len) data = data | ({512{1'b1}} << (8 * (bytes_len - 64 * w)));
        keep = keep_of(w);
        last = w + 1 == words_of();
        user = last && spoilt_mac;
        tag_bad = last && spoilt_tag;
        tick();
        if (!last && one_in(6)) begin
          valid = 1'b0;
          repeat (below(3)) tick();
        end
      end
      // What is said of it a clock behind its last word.
      {valid, last, user, tag_bad} = '0;
      ev_full = full;
      settle();
      `CHECK(ev_valid != drop_valid, "a frame is taken or dropped")
      if (drops) begin
        `CHECK(drop_valid && why == reason, $sformatf("dropped for its reason: %0d, not %0d", reason, why))
      end else if (no_room || full) begin
        `CHECK(drop_valid && why == fide_lowi_pkg::DropRoom, "no room")
      end else begin
        `CHECK(ev_valid, $sformatf("it is taken: %0d", why))
        taken++;
        `CHECK(16'(get(fide_wire_pkg::FROM_AT, 2)) == ids[ev.rank[1:0]], "its sender")
        `CHECK(ev.kind == ((what == Exit) ? fide_lowi_pkg::EvExit : (what == Ready) ? fide_lowi_pkg::EvReady : fide_lowi_pkg::EvCopy), "its kind")
        `CHECK(ev.sent_ns == get(fide_wire_pkg::SENT_NS_AT, 8) && 32'(ev.path) == Path, "its stamp and path")
        if (what inside {Round, Empty, Request}) begin
          `CHECK(ev.round == get(fide_wire_pkg::ROUND_AT, 8) && ev.inst == get(fide_wire_pkg::INSTANCE_AT, 8), "round and instance")
          `CHECK(ev.has_batch == (what != Empty) && 32'(ev.len) == bytes_len - 64, "its batch")
          `CHECK(ev.digest == crc_of(), "its CRC-32C")
          if (ev.has_batch) `CHECK(ev.barrier == (bytes[fide_wire_pkg::ENTRY_KIND_AT] != 8'd0), "what changes the members")
        end
        `CHECK(ev.has_buffer == (Store && what == Round), "a batch has a buffer")
        if (ev.has_buffer) begin
          foreach (owned[i]) `CHECK(owned[i] != ev.buffer, "a buffer belongs to one frame")
          owned.push_back(ev.buffer);
          for (int unsigned w = 1; w < words_of(); w++) begin
            `CHECK(stored[32'(ev.buffer) * MaxBeats + w - 1] == word_of(w), "the batch is stored")
          end
        end
      end
      if (drop_valid) seen[why]++;
      // Back to back, or with a pause in which buffers are given back.
      if (owned.size() >= 3 || one_in(3)) begin
        tick();
        ev_full = 1'b0;
        for (int unsigned i = 0; i < 2; i++) begin
          if (owned.size() != 0 && (owned.size() < Buffers || one_in(3))) begin
            free_valid[i] = 1'b1;
            free_buffer[i] = owned.pop_front();
          end
        end
        tick();
        free_valid = '0;
        if (one_in(40)) begin
          clear = 1'b1;
          tick();
          clear = 1'b0;
          owned.delete();
        end
      end else begin
        // The next frame's first word comes in this very clock.
        ev_full = full;
      end
      if (ev_full) begin
        tick();
        ev_full = 1'b0;
      end
    end
    `CHECK(taken > 1_000, "frames were taken")
    for (int unsigned i = 0; i < 14; i++) begin
      if (!(IsRequest && i == 32'(fide_lowi_pkg::DropPath))) `CHECK(seen[i] > 20, $sformatf("frames were dropped for reason %0d", i))
    end
    done(IsRequest ? "fide_rx_parser, requests" : "fide_rx_parser");
  end
endmodule
